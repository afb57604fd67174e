"""What is said of a CRIU that was ended: by whom, by what, how far it had come."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import DumpFailed
from gpuckpt.tools import criuend
from gpuckpt.tools.criuend import Watch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path / "dump.log", -1, 90.0, DumpFailed)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What the kernel will say of processes it has ended for lack of memory."""
    said: list[int | None] = [3]
    monkeypatch.setattr(criuend, "oom_kills", lambda: said[0])
    return said


@pytest.mark.parametrize(
    ("signum", "before", "now", "said"),
    [
        (signal.SIGKILL, 3, 5, "the kernel ended 2 processes for lack of memory"),
        (signal.SIGKILL, 3, 4, "the kernel ended 1 process for lack of memory"),
        (signal.SIGKILL, None, None, "probably because the host was out of memory"),
        (signal.SIGKILL, 3, 3, "SIGKILL, which gpuckpt did not send"),
        (signal.SIGTERM, 3, 9, "SIGTERM, which gpuckpt did not send"),
        (signal.SIGSEGV, 3, 3, "CRIU crashed (SIGSEGV)"),
        (40, 3, 3, "signal 40, which gpuckpt did not send"),
    ],
)
def test_a_signal(
    watch: Watch,
    kills: list[int | None],
    *,
    signum: int,
    before: int | None,
    now: int | None,
    said: str,
) -> None:
    watch.log.write_text("(00.1) on the way\n")
    kills[0] = now
    why = criuend.failed(watch, -signum, before)
    assert said in why.message
    assert why.hint
    assert why.log == watch.log
    assert why.excerpt == ("(00.1) on the way",)


def test_what_the_log_knows_comes_before_the_signal(watch: Watch) -> None:
    watch.log.write_text("(00.1) Error (criu/cgroup.c:1032): cg: BUG at criu/cgroup.c:1032\n")
    assert "a process of the job was killed" in criuend.failed(watch, -6, 0).message


def test_a_task_that_the_kernel_ended(watch: Watch, kills: list[int | None]) -> None:
    watch.log.write_text("(00.1) Error (x.c:1): 4711 killed by signal 9: Killed\n")
    kills[0] = 4
    why = criuend.failed(watch, 1, 3)
    assert "process 4711 was killed" in why.message
    assert "the kernel ended 1 process meanwhile for lack of memory" in why.message


def test_no_reason_is_said_to_be_none(watch: Watch) -> None:
    watch.log.write_text("(00.1) the end\n")
    why = criuend.failed(watch, 1, 0)
    assert "no reason that gpuckpt knows" in why.message
    assert why.excerpt == ("(00.1) the end",)
    watch.log.write_text("(00.1) Error (x.c:1): the moon is full\n")
    assert 'it complained first: "the moon is full"' in criuend.failed(watch, 1, 0).message


def test_before_its_log_criu_talks_to_its_output(watch: Watch) -> None:
    output = watch.log.with_name("criu.out")
    output.write_text("criu: unrecognized option '--stream'\n")
    why = criuend.failed(watch, 1, 0)
    assert "does not know an option" in why.message
    assert why.log == output


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("(00.02)  30481: (flock)flag: 2, type: 1, cmd: 2, pid: 30481, fd: 3", "a file lock"),
        ("(00.02) pie: 12: Preadv 0x7ffed4aee000:4096... (1 iovs)", "moving the job's memory"),
        ("(00.02) Seized task 12, state 1", "stopping the job's processes"),
        ("(00.02) something new", "is not known"),
    ],
)
def test_how_far_it_had_come(watch: Watch, last: str, said: str) -> None:
    watch.log.write_text(f"(00.01) begun\n{last}\n")
    why = criuend.out_of_time(watch)
    assert "its deadline of 90 s" in why.message
    assert said in why.message
    assert why.excerpt[-1] == last


def test_the_kernel_counts_those_it_ends(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    assert criuend.oom_kills(tmp_path) == 7
    (tmp_path / "vmstat").write_text("nr_free_pages 1\n")
    assert criuend.oom_kills(tmp_path) is None
    assert criuend.oom_kills(tmp_path / "none") is None
