"""SIGKILL of gpuckpt at every external call of dump, restore and rehearsal, then `repair`.

The operation runs in a child that ends, without any undo, after its n-th call. What the
kernel, CRIU and the driver's helpers do then is played by hand, the helpers acting or not.
Afterwards the job runs or is gone with its image whole, nothing is left over, and whatever a new
dump says before the repair is true.
"""

from __future__ import annotations

import os
import pickle
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError, Unfinished
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu import sameness
from gpuckpt.flow.rehearse import rehearse
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest, RehearseRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.status import status
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image.store import Image
from gpuckpt.model import CudaState
from tests.fakes.host import INIT_PID, ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE = {"cuda": 1, "plain": 1}
CALM = Interrupts()  # nobody sends a signal here, and each has a descriptor


def killed(host: FakeHost, folder: Path, run: Callable[[FakeHost], object]) -> FakeHost | None:
    """Run in a child that ends at the fault; return the host as it was then, None if it did not.

    A fault's own kind is given the host and the end, to be met when it likes.
    """
    note = folder / "host.pickle"

    def die(host: FakeHost) -> None:
        host.fault = host.interrupts = None
        note.write_bytes(pickle.dumps(host))
        os._exit(9)

    if host.fault:
        kind = host.fault.kind
        host.fault = replace(host.fault, kind=partial(kind, die) if callable(kind) else die)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pytest's workers have threads
        pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            host.move_in()
            run(host)
        os._exit(0)
    status_ = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status_ != 9:
        return None
    found = pickle.loads(note.read_bytes())  # noqa: S301 - our own
    note.unlink()
    found.move_in()
    return found


def dumping(folder: Path) -> Callable[[FakeHost], object]:
    (folder / "state").mkdir(parents=True, exist_ok=True)

    def run(host: FakeHost) -> object:
        request = DumpRequest(ROOT_PID, folder / "image", thp=True)
        return dump(host.toolbox(folder / "state"), request, Silent(), CALM)

    return run


def rehearsing(folder: Path, *, real: bool) -> Callable[[FakeHost], object]:
    (folder / "state").mkdir(parents=True, exist_ok=True)

    def run(host: FakeHost) -> object:
        what = DumpRequest(ROOT_PID, folder / "image", thp=True)
        request = RehearseRequest(what, settle=0.0, real=real, prove=not real)
        return rehearse(host.toolbox(folder / "state"), request, Silent(), CALM)

    return run


def restoring(image: Path, state: Path, *, apart: bool = False) -> Callable[[FakeHost], object]:
    state.mkdir(parents=True, exist_ok=True)

    def run(host: FakeHost) -> object:
        request = RestoreRequest(image, settle=0.0, thp=True, pid_namespace=apart, prove=True)
        return restore(host.toolbox(state), request, Silent(), CALM)

    return run


def calls_of(host: FakeHost, run: Callable[[FakeHost], object]) -> list[str]:
    run(host)
    return list(host.calls)


def mend(host: FakeHost, state: Path) -> None:
    """Repair, and see that it is all there was: nothing more to be done, nothing noted."""
    host.calls.clear()
    result = repair(host.toolbox(state), RepairRequest(), Silent(), CALM)
    assert not result.left
    again = repair(host.toolbox(state), RepairRequest(), Silent(), CALM)
    assert not again.done
    assert not again.left
    assert not status(host.toolbox(state)).needs_repair
    assert not Journal(state).entries()
    assert not list((state / "run").glob("*")), "a work folder was left"
    assert not host.armed
    assert not host.filters, "the job's connections are held back"
    assert host.huge_pages == "madvise"


def truth_told(host: FakeHost, folder: Path) -> bool:
    """Return whether a process has to be put back: then a new dump refuses, as status says."""
    seen = status(host.toolbox(folder / "state"))
    blocked = [found for one in seen.unfinished for found in one.left if found.blocks]
    before = pickle.dumps((host.processes, host.cuda))
    if not blocked:
        return False
    request = DumpRequest(ROOT_PID, folder / "other")
    with pytest.raises(Unfinished) as caught:
        dump(host.toolbox(folder / "state"), request, Silent(), CALM)
    assert [found.id for found in caught.value.findings] == [found.id for found in blocked]
    assert pickle.dumps((host.processes, host.cuda)) == before
    return True


def places(calls: list[str]) -> list[int]:
    """Return where to kill: after every call, but of a row of the same one only the last."""
    following = [*calls[1:], ""]
    return [
        n for n, (name, then) in enumerate(zip(calls, following, strict=True), 1) if name != then
    ]


@pytest.mark.parametrize("helpers", [True, False], ids=["helpers act", "helpers dead"])
def test_a_dump_killed_at_every_call(tmp_path: Path, *, helpers: bool) -> None:
    calls = calls_of(FakeHost.with_job(**SIZE), dumping(tmp_path / "good"))
    told = 0
    for number in places(calls):
        folder = tmp_path / str(number)
        before = FakeHost.with_job(**SIZE)
        victim = FakeHost.with_job(**SIZE)
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, dumping(folder))
        where = (number, calls[number - 1])
        assert host is not None, where
        host.after_the_death_of_gpuckpt(helpers=helpers)
        told += truth_told(host, folder)
        mend(host, folder / "state")
        left = {path.name for path in folder.iterdir()}
        if ROOT_PID in host.processes:  # it runs, beside its image if that was complete
            assert host.processes == before.processes, where
            assert host.cuda == before.cuda, where
            assert left <= {"state", "image"}, where
        else:
            assert not host.cuda, where
            assert left == {"state", "image"}, where
        if "image" in left:
            with Image.open(folder / "image") as image:
                image.check_sizes()
    assert bool(told) is not helpers, "only dead helpers leave something to be put back"


def test_who_starts_cuda_late_is_repaired_too(tmp_path: Path) -> None:
    """A child that begins to use the GPU between the look and the lock is the dump's as well."""
    newcomer = ROOT_PID + 90
    locks = calls_of(FakeHost.with_job(**SIZE), dumping(tmp_path / "good")).index("cuda.lock") + 1
    seen = set()

    def arrive(later: int, die: Callable[[FakeHost], None], host: FakeHost) -> None:
        host.processes[newcomer] = process(newcomer, ROOT_PID)
        host.cuda[newcomer] = CudaState.RUNNING
        host.gpu_bytes[newcomer] = 1 << 20
        host.fault = Fault(locks + later, die, "after")

    for later in range(2, 40, 3):
        folder, victim = tmp_path / str(later), FakeHost.with_job(**SIZE)
        victim.fault = Fault(locks, partial(arrive, later), "after")
        host = killed(victim, tmp_path, dumping(folder))
        assert host is not None
        if newcomer not in host.processes:
            break
        host.after_the_death_of_gpuckpt(helpers=False)
        seen.add(host.cuda[newcomer])
        mend(host, folder / "state")
        assert set(host.cuda.values()) == {CudaState.RUNNING}, later
        assert host.processes[newcomer].state == "S", later
    assert seen == {CudaState.RUNNING, CudaState.LOCKED, CudaState.CHECKPOINTED}


@pytest.mark.parametrize("helpers", [True, False], ids=["helpers act", "helpers dead"])
@pytest.mark.parametrize("real", [False, True], ids=["in place", "dump"])
def test_a_rehearsal_killed_at_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, real: bool, helpers: bool
) -> None:
    """The job runs as before; only a scratch image that was complete may be left."""
    monkeypatch.setattr(sameness, "WATCH_SECONDS", 0.0)
    calls = calls_of(FakeHost.with_job(**SIZE), rehearsing(tmp_path / "good", real=real))
    told = 0
    for number in places(calls):
        folder = tmp_path / str(number)
        before, victim = FakeHost.with_job(**SIZE), FakeHost.with_job(**SIZE)
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, rehearsing(folder, real=real))
        where = (number, calls[number - 1])
        assert host is not None, where
        host.after_the_death_of_gpuckpt(helpers=helpers)
        told += truth_told(host, folder)
        mend(host, folder / "state")
        assert host.processes == before.processes, where
        assert host.cuda == before.cuda, where
        left = {path.name for path in folder.iterdir()}
        assert left <= ({"state", "image"} if real else {"state"}), where
    assert bool(told) is not helpers, "only dead helpers leave something to be put back"


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumped")
    dumping(folder)(FakeHost.with_job(**SIZE))
    return folder / "image"


def target(**size: int) -> FakeHost:
    """Return a host without the job, ready to take it back."""
    host = FakeHost.with_job(**(size or SIZE))
    host.restored = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    for pid in host.restored:
        del host.processes[pid]
    host.cuda.clear()
    return host


@pytest.mark.parametrize("criu", ["turns back", "dead"])
def test_a_restore_killed_at_every_call(tmp_path: Path, dumped: Path, criu: str) -> None:
    """The job is gone, suspended first, or runs whole; the image can be restored again."""
    calls = calls_of(target(), restoring(dumped, tmp_path / "good"))
    whole = 0
    for number in places(calls):
        state = tmp_path / str(number)
        victim = target()
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, restoring(dumped, state))
        where = (number, calls[number - 1])
        assert host is not None, where
        host.after_the_death_of_gpuckpt(helpers=True, criu=criu == "turns back")
        with suppress(GpuckptError):
            restoring(dumped, state)(host)  # refused, or starts nothing beside what is there
            continue  # nothing stood in its way: the first one had not begun
        mend(host, state)
        assert not host.ended_live, where
        if ROOT_PID in host.processes:
            whole += 1
            assert set(host.restored) <= set(host.processes), where
            assert set(host.cuda.values()) == {CudaState.RUNNING}, where
        else:
            assert set(host.processes).isdisjoint(host.restored), where
            assert not host.cuda, where
            restoring(dumped, state)(host)
            assert set(host.cuda.values()) == {CudaState.RUNNING}
    assert whole, "a restore that was only to be looked at must be kept"


def test_a_restore_into_a_namespace_killed_at_every_call(tmp_path: Path, dumped: Path) -> None:
    """Nothing is left of it, process 1 included, or it stands and is kept."""
    calls = calls_of(target(), restoring(dumped, tmp_path / "good", apart=True))
    whole = 0
    for number in places(calls):
        if number <= calls.index("criu.restore"):
            continue
        state = tmp_path / str(number)
        victim = target()
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, restoring(dumped, state, apart=True))
        where = (number, calls[number - 1])
        assert host is not None, where
        host.after_the_death_of_gpuckpt(helpers=True)
        mend(host, state)
        assert not host.ended_live, where
        if INIT_PID in host.processes:
            whole += 1
            assert len(host.processes) == 2 + len(host.restored), where
            assert set(host.cuda.values()) == {CudaState.RUNNING}, where
        else:
            assert set(host.processes) == {os.getpid()}, where
            assert not host.cuda, where
    assert whole, "a restore that was only to be looked at must be kept"
