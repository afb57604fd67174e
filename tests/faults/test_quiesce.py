"""A job that is brought to rest: every external call fails, is interrupted, or is the last one.

Whatever happens, all of its processes stop at the same step or none does, and in the end all have
gone on, or are in an image that lets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError, Interrupted
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu import sameness
from gpuckpt.flow.rehearse import rehearse
from gpuckpt.flow.request import DumpRequest, RehearseRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work import quiescing
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.image.store import Image
from gpuckpt.model import CudaState
from tests.fakes.host import ROOT_PID, FakeHost, FakeRank, Fault
from tests.faults.test_dump import assert_untouched
from tests.faults.test_killed import CALM, killed, mend, places, target, truth_told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = (ROOT_PID + 1, ROOT_PID + 2)
SIZE = {"cuda": 2, "plain": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiescing, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(quiescing, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(sameness, "WATCH_SECONDS", 0.0)


def job() -> FakeHost:
    host = FakeHost.with_job(**SIZE)
    host.ranks = {pid: FakeRank(step=5 + pid - ROOT_PID) for pid in RANKS}
    return host


def dumping(folder: Path, *, stays: bool = False) -> Callable[[FakeHost], object]:
    (folder / "state").mkdir(parents=True, exist_ok=True)

    def run(host: FakeHost) -> object:
        request = DumpRequest(ROOT_PID, folder / "image", quiesce=True, leave_running=stays)
        return dump(host.toolbox(folder / "state"), request, Silent(), host.interrupts or CALM)

    return run


def rehearsing(folder: Path) -> Callable[[FakeHost], object]:
    (folder / "state").mkdir(parents=True, exist_ok=True)

    def run(host: FakeHost) -> object:
        request = RehearseRequest(DumpRequest(ROOT_PID, quiesce=True), settle=0.0)
        return rehearse(host.toolbox(folder / "state"), request, Silent(), CALM)

    return run


def calls_of(run: Callable[[FakeHost], object]) -> list[str]:
    host = job()
    run(host)
    return host.calls


def moments(calls: list[str]) -> list[int]:
    """Return where to strike: from the first time that a process is asked, not in each image."""
    first = next(number for number, name in enumerate(calls) if name.startswith("ranks."))
    found = [number for number in places(calls) if number >= first]
    images = [number for number in found if calls[number - 1].startswith("criu.image")]
    return [number for number in found if number not in images[1:]]


def assert_at_large(host: FakeHost, where: object) -> None:
    """All run; they stopped together, or not at all."""
    assert {(one.arrived, one.quiet) for one in host.ranks.values()} == {(0, 0)}, where
    assert len({one.stops for one in host.ranks.values()}) == 1, where


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
def test_every_call_of_a_dump_at_rest(tmp_path: Path, kind: str, when: str) -> None:
    calls = calls_of(dumping(tmp_path / "good"))
    assert {"ranks.ask", "ranks.target", "ranks.confirm", "ranks.look"} <= set(calls)
    for number in moments(calls[: calls.index("criu.committed")]):
        name = calls[number - 1]
        if name in {"criu.commit", "criu.dump"} and when == "after":
            continue  # the image stands by then
        if name == "files.digest" and kind == "error":
            continue  # an input stays unread
        folder = tmp_path / str(number)
        host, before = job(), job()
        host.fault = Fault(number, kind, when)
        host.interrupts = Interrupts()
        with pytest.raises((GpuckptError, OSError)) as caught:
            dumping(folder)(host)
        if kind == "signal":
            assert isinstance(caught.value, Interrupted), (number, name, caught.value)
        assert_untouched(host, before, folder)
        assert_at_large(host, (number, name))


def test_every_call_after_the_image_of_a_job_that_stays(tmp_path: Path) -> None:
    """A call that fails on the way back is made again."""
    calls = calls_of(dumping(tmp_path / "good", stays=True))
    first = calls.index("criu.committed") + 2
    wanted = {"cuda.states", "cuda.restore", "cuda.unlock", "ranks.release", "ranks.look"}
    for number in range(first, len(calls) + 1):
        if calls[number - 1] not in wanted:
            continue
        folder, host = tmp_path / str(number), job()
        host.fault = Fault(number, "error", "after")
        dumping(folder, stays=True)(host)
        assert_at_large(host, (number, calls[number - 1]))
        assert set(host.cuda.values()) == {CudaState.RUNNING}
        assert (folder / "image").exists()


@pytest.mark.parametrize(
    ("what", "helpers"), [("dump", True), ("dump", False), ("rehearsal", False)]
)
def test_killed_at_every_call(tmp_path: Path, what: str, *, helpers: bool) -> None:
    """Who only waits goes on by itself; who has let go waits for the repair."""
    act = dumping if what == "dump" else rehearsing
    calls = calls_of(act(tmp_path / "good"))
    quiet = 0
    for number in moments(calls):
        folder, victim = tmp_path / str(number), job()
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, act(folder))
        where = (number, calls[number - 1])
        assert host is not None, where
        host.after_the_death_of_gpuckpt(helpers=helpers)
        standing = any(one.quiet for one in host.ranks.values()) and ROOT_PID in host.processes
        told = truth_told(host, folder)
        assert told or not standing, where
        quiet += standing
        mend(host, folder / "state")
        if ROOT_PID in host.processes:
            assert set(host.cuda.values()) == {CudaState.RUNNING}, where
            assert_at_large(host, where)
        else:
            with Image.open(folder / "image") as image:
                assert image.manifest.quiesced == RANKS
    assert quiet


def test_a_restore_killed_at_every_call(tmp_path: Path) -> None:
    dumping(tmp_path / "good")(job())
    image = tmp_path / "good" / "image"

    def home() -> FakeHost:
        host = target(**SIZE)
        host.ranks = {
            pid: FakeRank(step=9, arrived=9, quiet=9, confirmed=9, stops=1) for pid in RANKS
        }
        return host

    def restoring(host: FakeHost, state: Path) -> None:
        state.mkdir(exist_ok=True)
        request = RestoreRequest(image, settle=0.0)
        restore(host.toolbox(state), request, Silent(), CALM)

    good = home()
    restoring(good, tmp_path / "state")
    assert_at_large(good, "undisturbed")
    released = 0
    for number in places(good.calls)[len(places(good.calls)) // 2 :]:
        state, victim = tmp_path / f"state-{number}", home()
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, lambda one, state=state: restoring(one, state))
        where = (number, good.calls[number - 1])
        assert host is not None, where
        host.after_the_death_of_gpuckpt(helpers=True)
        (state).mkdir(exist_ok=True)
        mend(host, state)
        if ROOT_PID in host.processes:
            released += 1
            assert_at_large(host, where)
    assert released
