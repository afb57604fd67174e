"""Jobs of four ranks: held together or not at all, and no rank forgotten when one goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.cli.dump import outcome
from gpuckpt.errors import (
    CudaCallFailed,
    GpuckptError,
    GpuLockTimeout,
    GpuMemoryShort,
    RestoreFailed,
    UndoIncomplete,
)
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu import memory
from gpuckpt.flow.gpu.tree import CudaTree
from gpuckpt.flow.request import DumpRequest, DumpResult, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image.store import Image
from gpuckpt.model import CudaOutcome, CudaState
from tests.fakes.host import GIB, ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = [ROOT_PID + number for number in range(1, 5)]
PAGES = f"criu.image.pages-{RANKS[0]}.img"
RUNNING, CHECKPOINTED = CudaState.RUNNING, CudaState.CHECKPOINTED


def four() -> FakeHost:
    return FakeHost.with_job(cuda=4, plain=0)


def run(host: FakeHost, folder: Path, **changes: Any) -> DumpResult:
    (folder / "state").mkdir(parents=True, exist_ok=True)
    request = replace(DumpRequest(ROOT_PID, folder / "image"), **changes)
    return dump(host.toolbox(folder / "state"), request, Silent(), Interrupts())


def calls_of_a_good_dump(folder: Path) -> list[str]:
    host = four()
    run(host, folder)
    return host.calls


def test_rounds_and_time_are_told_everywhere(tmp_path: Path) -> None:
    """The page, the JSON, the receipt and the manifest say how the ranks were held."""
    host = four()
    host.busy, host.busy_rounds = {RANKS[2]}, 2
    result = run(host, tmp_path)
    (lock,) = [one for one in result.receipt.phases if one.name == "lock"]
    assert lock.rounds == 3
    with Image.open(tmp_path / "image") as image:
        assert [one.rounds for one in image.manifest.receipt.phases if one.name == "lock"] == [3]
    shown = outcome(result)
    assert shown.payload["receipt"] is result.receipt
    fields = dict(shown.page.blocks[0].rows)  # type: ignore[union-attr]
    assert fields["lock"].startswith("4 processes held at once, 3 rounds, ")


def test_a_newcomer_of_a_round_that_failed_is_held_in_the_next(tmp_path: Path) -> None:
    """A worker may start CUDA while its siblings are being locked and let go again."""
    host, newcomer = four(), ROOT_PID + 90
    first = calls_of_a_good_dump(tmp_path / "good").index("cuda.lock") + 1

    def start(host: FakeHost) -> None:
        host.processes[newcomer] = process(newcomer, ROOT_PID)
        host.cuda[newcomer] = RUNNING
        host.gpu_bytes[newcomer] = 1 << 20

    host.busy, host.busy_rounds = {RANKS[0]}, 1
    host.fault = Fault(first, start, "before")
    result = run(host, tmp_path)
    assert result.manifest.cuda[newcomer] is RUNNING
    # the round that failed, the one with all: nobody was locked without being asked for
    assert host.calls.count("cuda.lock") == 2


def test_a_lock_in_vain_names_who_was_held_and_who_was_not(tmp_path: Path) -> None:
    host = four()
    host.busy = {RANKS[1]}
    with pytest.raises(GpuLockTimeout) as caught:
        run(host, tmp_path, lock_timeout=0.2)
    held = ", ".join(str(pid) for pid in RANKS if pid != RANKS[1])
    assert f"could not hold process {RANKS[1]} within 0.2 s" in caught.value.message
    assert f"process {held} was held and let go again" in caught.value.message
    assert len(caught.value.excerpt) == 4
    assert set(host.cuda.values()) == {RUNNING}


def die(pid: int) -> Callable[[FakeHost], None]:
    def act(host: FakeHost) -> None:
        del host.processes[pid]
        host.cuda[pid] = CudaState.NONE

    return act


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["cuda.lock", "cuda.checkpoint", PAGES])
def test_one_rank_dies_and_the_others_are_brought_back(
    tmp_path: Path, call: str, when: str
) -> None:
    """All or nothing: no image, and the report has every rank's state."""
    number = calls_of_a_good_dump(tmp_path / "good").index(call) + 1
    host, victim, folder = four(), RANKS[2], tmp_path / "bad"

    def kill(host: FakeHost) -> None:
        die(victim)(host)
        if call.startswith("criu"):
            raise OSError(3, "No such process")
        late = CudaOutcome(victim, call[5:], "GONE", RUNNING, None, gone=True)
        if when == "after":
            others = [CudaOutcome(pid, call[5:]) for pid in RANKS if pid != victim]
            raise CudaCallFailed(call[5:], [*others, late])

    host.fault = Fault(number, kill, when)
    with pytest.raises(GpuckptError) as caught:
        run(host, folder)
    alive = [pid for pid in RANKS if pid != victim]
    assert {pid: host.cuda[pid] for pid in alive} == dict.fromkeys(alive, RUNNING)
    assert all(host.processes[pid].state == "S" for pid in (*alive, ROOT_PID))
    told = {one.pid: (one.exists, one.cuda) for one in caught.value.processes}
    assert told[victim][0] is False
    assert {pid: told[pid] for pid in alive} == dict.fromkeys(alive, (True, RUNNING))
    assert not (folder / "image").exists()
    assert str(victim) in str(caught.value)


def test_one_rank_that_gives_no_answer_does_not_keep_the_others(tmp_path: Path) -> None:
    """It alone is left as it is, and named; the others run on."""
    host, silent = four(), RANKS[0]
    tools = host.toolbox(tmp_path)
    first = dict.fromkeys(RANKS, RUNNING)
    cuda = CudaTree(tools, Interrupts(), first)
    cuda.open()
    tools.cuda.lock(RANKS, 1.0)
    tools.cuda.checkpoint(RANKS)

    def hang(host: FakeHost) -> None:
        asked = [CudaOutcome(pid, "state", "", host.cuda[pid], host.cuda[pid]) for pid in RANKS[1:]]
        raise CudaCallFailed("state", [CudaOutcome(silent, "state", "NO_ANSWER"), *asked])

    host.fault = Fault(len(host.calls) + 1, hang, "before")
    with pytest.raises(GpuckptError, match=f"has not come back from state of process {silent}"):
        cuda.bring_back()
    assert host.cuda == {silent: CHECKPOINTED} | dict.fromkeys(RANKS[1:], RUNNING)
    cuda.bring_back()
    assert set(host.cuda.values()) == {RUNNING}


def test_without_gpu_memory_those_that_were_only_locked_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MEMORY_PATIENCE", 0.0)
    host = four()
    tools = host.toolbox(tmp_path)
    cuda = CudaTree(tools, Interrupts(), dict.fromkeys(RANKS, RUNNING))
    cuda.open()
    tools.cuda.lock(RANKS, 1.0)
    cuda.measure()
    tools.cuda.checkpoint(RANKS[:2])
    host.gpu_free = GIB
    with pytest.raises(GpuMemoryShort):
        cuda.bring_back()
    assert [host.cuda[pid] for pid in RANKS] == [CHECKPOINTED, CHECKPOINTED, RUNNING, RUNNING]


def test_of_a_restored_job_either_all_ranks_run_or_none_is_there(tmp_path: Path) -> None:
    """A rank whose state the driver does not give back takes the others along, suspended first."""
    host = four()
    jobs = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    run(host, tmp_path)
    host.restored, host.stuck = jobs, {RANKS[1]}
    tools, request = (
        host.toolbox(tmp_path / "state"),
        RestoreRequest(tmp_path / "image", settle=0.0),
    )
    with pytest.raises(RestoreFailed, match=f"restore process {RANKS[1]}"):
        restore(tools, request, Silent(), Interrupts())
    assert set(host.processes).isdisjoint(jobs)
    assert not host.ended_live
    host.stuck = set()
    restore(tools, request, Silent(), Interrupts())
    assert {pid: host.cuda[pid] for pid in RANKS} == dict.fromkeys(RANKS, RUNNING)


def test_a_rank_that_cannot_be_restored_is_all_that_is_left(tmp_path: Path) -> None:
    """The undo gives every other rank its state back, and the journal keeps the one."""
    number = calls_of_a_good_dump(tmp_path / "good").index("criu.dump") + 1
    host, lost = four(), RANKS[3]
    host.stuck = {lost}
    host.fault = Fault(number, "error", "before")
    with pytest.raises(UndoIncomplete) as caught:
        run(host, tmp_path)
    assert host.cuda == dict.fromkeys(RANKS[:3], RUNNING) | {lost: CHECKPOINTED}
    told = {one.pid: one.differs for one in caught.value.processes}
    assert [pid for pid, differs in told.items() if differs] == [lost]
    assert Journal(tmp_path / "state").entries()
