"""What signals do to a command: a request, an answer on stderr, an exit status."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.cli import main
from tests.cli import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.flow.work.interrupts import Interrupts
    from tests.cli.conftest import Flows, Ran

PATIENCE = 20.0  # seconds for a thread to answer


@contextmanager
def ignored(signum: signal.Signals) -> Iterator[None]:
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signum, before)


def answered(reporter: Any, words: str) -> None:
    """Wait until the thread that answers signals has said something."""
    told: list[str] = reporter.told
    ends = time.monotonic() + PATIENCE
    while not any(words in line for line in told):
        assert time.monotonic() < ends, told
        time.sleep(0.01)


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], None]:
    """Return a function that puts a flow in the place of dump, with a reporter that remembers."""

    def install(act: Callable[..., object]) -> None:
        def dump(_t: object, _r: object, reporter: Any, interrupts: Interrupts) -> object:
            told: list[str] = []
            warn = reporter.warn

            def remember(text: str) -> None:
                told.append(text)
                warn(text)

            reporter.warn, reporter.told = remember, told
            return act(reporter, interrupts)

        monkeypatch.setattr("gpuckpt.flow.dump.dump", dump)

    return install


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("flows")
def test_a_signal_is_a_request_and_an_exit_status(
    signum: signal.Signals,
    gpuckpt: Callable[..., Ran],
    signalled: Callable[[Callable[..., object]], None],
) -> None:
    def act(reporter: Any, interrupts: Interrupts) -> None:
        os.kill(os.getpid(), signum)
        answered(reporter, "stopping at the next safe place")
        os.kill(os.getpid(), signal.SIGINT)
        answered(reporter, "SIGINT again")
        interrupts.check()

    signalled(act)
    before = signal.getsignal(signum)
    ran = gpuckpt("dump", 5)
    assert ran.code == 128 + signum
    assert f"gpuckpt dump: interrupted by {signum.name}" in ran.err
    assert signal.getsignal(signum) == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.usefixtures("flows")
def test_no_signal_changes_a_status_that_was_told(
    signalled: Callable[[Callable[..., object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that asks for the exit status must not learn that a finished dump was ended."""
    signalled(lambda *_: samples.dump_result())
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main.run(["dump", "5"], last=True) == 0
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    assert "dumped" in capsys.readouterr().out


@pytest.mark.usefixtures("flows")
def test_a_signal_that_was_ignored_stays_ignored(
    gpuckpt: Callable[..., Ran], signalled: Callable[[Callable[..., object]], None]
) -> None:
    """Under nohup a hang-up must not undo a dump."""

    def act(_reporter: Any, interrupts: Interrupts) -> object:
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.check()
        return samples.dump_result()

    signalled(act)
    with ignored(signal.SIGHUP):
        assert gpuckpt("dump", 5).code == 0


@pytest.mark.usefixtures("flows")
def test_stopping_gpuckpt_would_leave_the_job_frozen(
    gpuckpt: Callable[..., Ran], signalled: Callable[[Callable[..., object]], None]
) -> None:
    def act(reporter: Any, interrupts: Interrupts) -> object:
        os.kill(os.getpid(), signal.SIGTSTP)
        answered(reporter, "SIGTSTP is ignored")
        interrupts.check()
        return samples.dump_result()

    signalled(act)
    assert gpuckpt("dump", 5).code == 0


def test_with_wait_signals_are_the_jobs(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for(_tools: object, _job: object, interrupts: Interrupts, _: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.pending == signal.SIGTERM
        return 128 + signal.SIGTERM

    monkeypatch.setattr("gpuckpt.flow.returning.waiting.wait_for", wait_for)
    ran = gpuckpt("restore", "image", "--wait")
    assert ran.code == 143
    assert "gpuckpt: note: SIGTERM is passed on to the job" in ran.err
    assert flows.requests
