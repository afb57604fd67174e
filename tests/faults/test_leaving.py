"""A dump that leaves its job running: everything fails, is interrupted or is killed, everywhere.

The job goes on before its image is written, so packing and committing are calls like any other
here. Whatever happens, the job is as it was, and there is a whole image or nothing at all. Once
the job was let go nothing of it is touched any more, neither then nor by a repair.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import (
    DumpFailed,
    GpuckptError,
    ImageNotMade,
    Interrupted,
    UndoIncomplete,
    WriteFailed,
)
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest, DumpResult
from gpuckpt.flow.taking.commit import Commit
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image.pack import Packer
from gpuckpt.image.stage import Stage
from gpuckpt.image.store import Image
from gpuckpt.model import CudaState, ProcessRef
from tests.fakes.host import ROOT_PID, FakeHost, Fault
from tests.faults.test_killed import killed, mend, places

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANK = ROOT_PID + 1


class Hosts:
    """The host of the dump that runs: packing and committing are calls that it counts."""

    now: FakeHost


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((Packer, "finish"), (Stage, "commit")):
        label, real = f"{owner.__name__.lower()}.{name}", getattr(owner, name)

        def call(self: object, *args: Any, _label: str = label, _real: Any = real) -> Any:
            return Hosts.now.around(_label, lambda: _real(self, *args))

        monkeypatch.setattr(owner, name, call)
    # one after the other, so that calls have numbers
    monkeypatch.setattr(Commit, "start_writing", lambda _: None)


def job(**size: int) -> FakeHost:
    """Make a host with a small job, all of which can wait in memory."""
    host = FakeHost.with_job(**size)
    host.gpu_bytes = dict.fromkeys(host.gpu_bytes, 8 << 20)
    host.memory_free = 60 << 30
    return host


def run(host: FakeHost, folder: Path) -> DumpResult:
    host.interrupts = Interrupts()
    Hosts.now = host
    (folder / "state").mkdir(parents=True, exist_ok=True)
    request = DumpRequest(ROOT_PID, folder / "image", leave_running=True, thp=True)
    return dump(host.toolbox(folder / "state"), request, Silent(), host.interrupts)


def calls_of(folder: Path) -> list[str]:
    host = job()
    run(host, folder)
    return list(host.calls)


def whole(folder: Path) -> bool:
    """Say whether there is an image; what is there must be one."""
    left = {path.name for path in folder.iterdir()}
    assert left <= {"state", "image"}, left
    if "image" in left:
        with Image.open(folder / "image") as image:
            image.check_sizes()
    return "image" in left


def assert_as_before(host: FakeHost, folder: Path, at: object) -> None:
    before = job()
    assert host.processes == before.processes, at
    assert host.cuda == before.cuda, at
    assert host.huge_pages == before.huge_pages, at
    assert not Journal(folder / "state").entries(), at
    assert not list((folder / "state" / "run").glob("*")), at


@pytest.fixture(scope="module")
def resumed() -> str:
    """Return the last call by which the job gets anything back."""
    return "cuda.unlock"


def test_the_job_is_back_before_anything_is_waited_for(tmp_path: Path, resumed: str) -> None:
    """The order is the promise: the driver first, then the disk, and the commit last."""
    calls = calls_of(tmp_path)
    assert calls.count("packer.finish") == calls.count("stage.commit") == 1
    order = ["criu.committed", "cuda.restore", resumed, "packer.finish", "stage.commit"]
    assert sorted(order, key=calls.index) == order


def test_memory_is_made_ready_while_the_job_runs(tmp_path: Path) -> None:
    result = run(job(), tmp_path)
    phases = [one.name for one in result.receipt.phases]
    assert phases.index("spool") < phases.index("lock")
    assert result.receipt.phases[phases.index("spool")].bytes > 8 << 20


def test_a_signal_while_memory_is_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at once, and nothing was touched yet."""

    def slow(self: Packer, _: object) -> None:
        Hosts.now.interrupts.request(2)  # type: ignore[union-attr]
        with self._changed:
            assert self._changed.wait_for(lambda: self._error, 60)

    monkeypatch.setattr(Packer, "warm", slow)
    host = job()
    with pytest.raises(Interrupted):
        run(host, tmp_path)
    assert "cuda.lock" not in host.calls
    assert_as_before(host, tmp_path, "")
    assert not whole(tmp_path)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
def test_every_call(tmp_path: Path, resumed: str, kind: str, when: str) -> None:
    calls = calls_of(tmp_path / "good")
    parted = len(calls) - calls[::-1].index(resumed)
    for number, name in enumerate(calls, 1):
        if name == "host.set_huge_pages" and kind == "error":
            continue  # it goes on without: tests/flow/test_huge_pages.py
        folder, at = tmp_path / f"{number}", (number, name)
        host = job()
        host.fault = Fault(number, kind, when)
        told: Exception | None = None
        try:
            run(host, folder)
        except (GpuckptError, OSError) as why:
            told = why
        assert host.calls[number - 1] == name
        assert_as_before(host, folder, at)
        stands = number == len(calls) - calls[::-1].index("stage.commit") and when == "after"
        assert whole(folder) is (told is None or stands), at
        if kind == "signal":
            late = number > calls.index("stage.commit")
            assert isinstance(told, Interrupted) or late, at
        if number > parted and told is not None and not stands:
            assert isinstance(told, ImageNotMade | Interrupted), at
            assert "the job runs on; the image was not made" in str(told), at


def test_a_signal_while_the_disk_hangs_gives_the_image_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to wait for a disk whose job runs again."""
    real = Packer.finish

    def hang(self: Packer) -> object:
        Hosts.now.interrupts.request(15)  # type: ignore[union-attr]
        with self._changed:
            assert self._changed.wait_for(lambda: self._error, 60)
        return real(self)

    monkeypatch.setattr(Packer, "finish", hang)
    host = job()
    with pytest.raises(Interrupted, match="the job runs on; the image was not made") as caught:
        run(host, tmp_path)
    assert caught.value.exit_code == 128 + 15
    assert_as_before(host, tmp_path, "")
    assert not whole(tmp_path)


def test_a_full_disk_costs_only_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Packer) -> None:
        raise WriteFailed("the disk is full", hint="Make room.")

    monkeypatch.setattr(Packer, "finish", full)
    host = job()
    with pytest.raises(ImageNotMade, match="the image was not made: the disk is full") as caught:
        run(host, tmp_path)
    assert (caught.value.exit_code, caught.value.hint) == (6, "Make room.")
    assert_as_before(host, tmp_path, "")
    assert not whole(tmp_path)


def test_a_stage_that_cannot_be_removed_is_left_to_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a matter of files alone: the exit status still tells of the job."""
    host = job()

    def refuses(self: Stage) -> None:
        self.close()
        raise WriteFailed("a folder is in use")

    with monkeypatch.context() as patch:
        patch.setattr(Packer, "finish", lambda _: refuses(Stage(tmp_path, -1, "")))
        patch.setattr(Stage, "discard", refuses)
        with pytest.raises(ImageNotMade, match="`gpuckpt repair` removes it") as caught:
            run(host, tmp_path)
    assert caught.value.exit_code == 6
    (left,) = Journal(tmp_path / "state").entries()
    assert not left.processes
    me = os.getpid()
    host.processes[me] = replace(host.processes[me], ref=ProcessRef(me, 1))  # a later gpuckpt
    mend(host, tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_job_that_is_not_given_its_gpu_state_has_its_image(tmp_path: Path) -> None:
    """Then it is worth most: not even a signal keeps it from being made."""
    host = job()
    host.stuck = {RANK}

    def stop(host: FakeHost) -> None:
        assert host.interrupts is not None
        host.interrupts.request(2)

    host.fault = Fault(calls_of(tmp_path / "good").index("cuda.restore") + 1, stop, "before")
    with pytest.raises(UndoIncomplete, match=r"image .* is whole, but the job was not given"):
        run(host, tmp_path / "bad")
    assert whole(tmp_path / "bad")
    (left,) = Journal(tmp_path / "bad" / "state").entries()
    assert RANK in left.first
    assert host.cuda[RANK] is CudaState.CHECKPOINTED


def test_both_lost_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Packer) -> None:
        raise WriteFailed("the disk is full")

    monkeypatch.setattr(Packer, "finish", full)
    host = job()
    host.stuck = {RANK}
    with pytest.raises(UndoIncomplete, match="the image was not made: the disk is full") as caught:
        run(host, tmp_path)
    assert "was not given its GPU state back" in str(caught.value)
    assert "restore the image" not in caught.value.hint
    assert not whole(tmp_path)
    assert Journal(tmp_path / "state").entries()


@pytest.mark.parametrize("lost", [False, True], ids=["job whole", "job in pieces"])
def test_a_criu_that_fails_after_its_answer(tmp_path: Path, *, lost: bool) -> None:
    """The job that goes on wins over its image; of one that is in pieces the image is kept."""

    def fail(host: FakeHost) -> None:
        if lost:
            del host.processes[RANK]
            host.cuda.pop(RANK)
        raise DumpFailed("CRIU was killed")

    host = job()
    number = calls_of(tmp_path / "good").index("criu.committed") + 1
    host.fault = Fault(number, fail, "after")
    folder = tmp_path / "bad"
    with pytest.raises(UndoIncomplete if lost else DumpFailed) as caught:
        run(host, folder)
    assert whole(folder) is lost
    if lost:
        assert "CRIU failed after it had handed everything over, and left process" in str(caught)
        assert "is whole" in caught.value.hint
    else:
        assert_as_before(host, folder, "")


def test_killed_at_every_call(tmp_path: Path) -> None:
    """From the moment the job was let go a repair touches files alone."""

    def running(folder: Path) -> Callable[[FakeHost], object]:
        return partial(run, folder=folder)

    size = {"cuda": 1, "plain": 1}
    good = job(**size)
    run(good, tmp_path / "good")
    parted = good.calls.index("packer.finish")
    alone = 0
    for number in places(good.calls):
        folder, at = tmp_path / str(number), (number, good.calls[number - 1])
        before, victim = job(**size), job(**size)
        victim.fault = Fault(number, "", "after")
        (folder / "state").mkdir(parents=True)
        host = killed(victim, tmp_path, running(folder))
        assert host is not None, at
        host.after_the_death_of_gpuckpt(helpers=number > parted)
        host.calls.clear()
        repair(host.toolbox(folder / "state"), RepairRequest(), Silent(), Interrupts())
        if number > parted:
            alone += 1
            touched = {name for name in host.calls if name.startswith(("cuda.", "net.", "ranks."))}
            assert touched <= {"net.held"}, at
        mend(host, folder / "state")
        assert host.processes == before.processes, at
        assert host.cuda == before.cuda, at
        assert whole(folder) is (number > good.calls.index("stage.commit")), at
    assert alone


def test_the_next_dump_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    """And the job is not asked about: it was let go."""
    calls = calls_of(tmp_path / "good")
    victim = job()
    victim.fault = Fault(calls.index("packer.finish") + 1, "", "before")
    (tmp_path / "state").mkdir()
    host = killed(victim, tmp_path, partial(run, folder=tmp_path))
    assert host is not None
    host.after_the_death_of_gpuckpt(helpers=True)
    assert [path.name for path in tmp_path.iterdir() if "image" in path.name], "no stage was left"
    host.calls.clear()
    Hosts.now = host
    request = DumpRequest(ROOT_PID, tmp_path / "other", leave_running=True)
    dump(host.toolbox(tmp_path / "state"), request, Silent(), Interrupts())
    assert {path.name for path in tmp_path.iterdir()} == {"state", "good", "other"}
