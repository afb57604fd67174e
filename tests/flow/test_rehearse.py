"""Rehearsals: in place, with a real image, refused, and of a job that does not come back right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import (
    Blocked,
    CudaCallFailed,
    GpuStepFailed,
    HostUnfit,
    NothingToRehearse,
    RehearsalFailed,
    UndoIncomplete,
)
from gpuckpt.events import Silent
from gpuckpt.flow.gpu import memory, sameness
from gpuckpt.flow.rehearse import rehearse, verdict
from gpuckpt.flow.request import CopiesProved, DumpRequest, RehearseRequest, RehearseResult
from gpuckpt.flow.work.history import History
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image.store import Image
from gpuckpt.model import CudaOutcome, CudaState
from tests.fakes import host as host_module
from tests.fakes.criuimages import ADDRESS
from tests.fakes.host import COPIES, COPY, GIB, ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = ROOT_PID + 500


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sameness, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(sameness, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(memory, "MEMORY_PATIENCE", 0.1)


def run(host: FakeHost, folder: Path, **changes: Any) -> RehearseResult:
    (folder / "state").mkdir(parents=True, exist_ok=True)
    host.interrupts = Interrupts()
    ignore = frozenset(changes.pop("ignore", ()))
    what = DumpRequest(ROOT_PID, folder / "scratch", ignore=ignore)
    request = replace(RehearseRequest(what, settle=0.0), **changes)
    return rehearse(host.toolbox(folder / "state"), request, Silent(), host.interrupts)


def test_in_place_nothing_is_written(tmp_path: Path) -> None:
    host, before = FakeHost.with_job(), FakeHost.with_job()
    result = run(host, tmp_path, stay=0.05)
    assert (host.processes, host.cuda) == (before.processes, before.cuda)
    assert not host.armed
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert not Journal(tmp_path / "state").entries()
    assert [one.name for one in result.receipt.phases if not one.inside] == [
        *("look", "prepare", "lock", "gpu-out", "stay", "gpu-in", "settle"),
    ]
    assert result.pause >= 0.05
    assert (result.gpu_bytes, result.wrong) == (2 * GIB, ())
    assert "criu.dump" not in host.calls
    (kept,) = History(tmp_path / "state").records()
    assert (kept.operation, kept.outcome, kept.pause) == ("rehearse", "done", result.pause - 0.05)
    assert verdict(result) is None


@pytest.mark.parametrize("wandering", [False, True])
def test_a_round_trip_proves_the_gpu_memory(tmp_path: Path, *, wandering: bool) -> None:
    """The GPU state goes twice and comes back twice, and the copies are alike wherever they lie."""
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.wandering = wandering
    result = run(host, tmp_path, prove=True)
    assert (host.processes, host.cuda) == (before.processes, before.cuda)
    proved = CopiesProved(4 * COPY, 4, moved=4 if wandering else 0, stamps=2)
    assert (result.proved, result.wrong) == (proved, ())
    done = [call for call in host.calls if call in {"cuda.checkpoint", "cuda.restore"}]
    assert done == ["cuda.checkpoint", "cuda.restore"] * 2
    assert host.calls.count("cuda.lock") == host.calls.count("cuda.unlock") == 1
    names = [one.name for one in result.receipt.phases]
    assert names[2:8] == ["lock", "gpu-out", "digest", "gpu-turn", "prove", "gpu-in"]


@pytest.mark.parametrize("wandering", [False, True])
def test_gpu_memory_that_changes_on_the_way_is_named(tmp_path: Path, *, wandering: bool) -> None:
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.forgetful, host.wandering = {ROOT_PID + 1}, wandering
    result = run(host, tmp_path, prove=True)
    assert (host.processes, host.cuda) == (before.processes, before.cuda)
    assert result.proved == CopiesProved(2 * COPY, 2, moved=2 if wandering else 0, stamps=2)
    assert [(one.id, one.pid) for one in result.wrong] == [("gpu-bytes-differ", ROOT_PID + 1)] * 2
    told = (
        "did not come again"
        if wandering
        else f"1 of its 2 pieces of 512 KiB, the first at {COPIES:#x}"
    )
    assert told in result.wrong[0].reason
    assert isinstance(verdict(result), RehearsalFailed)


def test_copies_that_are_nowhere_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module._Memory, "populated", lambda *_: ((ADDRESS, ADDRESS + 4096),))
    result = run(FakeHost.with_job(), tmp_path, prove=True)
    assert result.proved == CopiesProved(0, 0)
    assert [(one.id, one.blocks) for one in result.wrong] == [("gpu-copies-unseen", False)]


def test_a_kernel_that_does_not_tell_is_no_place_for_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(host_module._Memory, "populated", silent)
    host, before = FakeHost.with_job(), FakeHost.with_job()
    with pytest.raises(HostUnfit, match="does not tell which memory"):
        run(host, tmp_path, prove=True)
    assert (host.processes, host.cuda) == (before.processes, before.cuda)


@pytest.mark.parametrize("keep", [False, True])
def test_with_a_real_dump(tmp_path: Path, *, keep: bool) -> None:
    """The job goes on from memory; the image was whole, and is labelled if it is kept."""
    host, before = FakeHost.with_job(), FakeHost.with_job()
    result = run(host, tmp_path, real=True, keep=keep)
    assert (host.processes, host.cuda) == (before.processes, before.cuda)
    assert result.dumped is not None
    assert result.dumped.running
    assert result.image_bytes == result.dumped.manifest.totals.raw > 0
    assert (tmp_path / "scratch").exists() is keep
    if keep:
        with Image.open(tmp_path / "scratch") as image:
            assert image.manifest.labels == {"rehearsal": "yes"}


def test_without_a_place_the_scratch_is_beside_where_a_dump_would_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    what = DumpRequest(ROOT_PID)
    result = run(FakeHost.with_job(), tmp_path, real=True, keep=True, what=what)
    assert result.kept is not None
    assert result.kept.parent == tmp_path
    assert result.kept.name.endswith(".rehearsal.gpuckpt")


def test_a_job_without_cuda(tmp_path: Path) -> None:
    """In place there is nothing to do; the dump can be rehearsed."""
    host = FakeHost.with_job(cuda=0)
    with pytest.raises(NothingToRehearse) as caught:
        run(host, tmp_path / "a")
    assert "--dump" in caught.value.hint
    with pytest.raises(NothingToRehearse) as caught:
        run(host, tmp_path / "c", prove=True)
    assert "gpuckpt restore IMAGE --prove" in caught.value.hint
    assert run(host, tmp_path / "b", real=True).cuda_pids == ()


@pytest.mark.parametrize("real", [False, True])
def test_memory_that_others_could_take(tmp_path: Path, *, real: bool) -> None:
    """Who shares the GPU is named; the operator may accept it."""
    host = FakeHost.with_job()
    host.processes[STRANGER] = process(STRANGER, argv=("python", "other.py"))
    host.strangers[STRANGER] = GIB
    with pytest.raises(Blocked) as caught:
        run(host, tmp_path / "a", real=real)
    assert [one.id for one in caught.value.findings if one.blocks] == ["gpu-shared"]
    assert caught.value.findings[0].pid == STRANGER
    assert "python other.py" in caught.value.findings[0].reason
    assert "cuda.lock" not in host.calls
    result = run(host, tmp_path / "b", real=real, ignore={"gpu-shared"})
    assert [one.id for one in result.findings] == ["gpu-shared"]


def test_memory_that_somebody_took(tmp_path: Path) -> None:
    """The driver is not asked without room; the journal keeps what `repair` needs."""

    def fill(host: FakeHost) -> None:
        host.processes[STRANGER] = process(STRANGER, argv=("python", "fill.py"))
        host.strangers[STRANGER] = host.gpu_free

    good = FakeHost.with_job()
    run(good, tmp_path / "good")
    host = FakeHost.with_job()
    host.fault = Fault(good.calls.index("cuda.checkpoint") + 1, fill, "after")
    with pytest.raises(UndoIncomplete) as caught:
        run(host, tmp_path / "short")
    assert f"held by process {STRANGER} (python fill.py)" in caught.value.message
    assert "gpuckpt repair" in caught.value.hint
    assert "cuda.restore" not in host.calls
    assert [one.operation for one in Journal(tmp_path / "short" / "state").entries()] == [
        "rehearse"
    ]


def test_a_step_back_that_fails_once_is_taken_again(tmp_path: Path) -> None:
    """The rehearsal has failed, which is what it is for; the job runs."""
    good = FakeHost.with_job()
    run(good, tmp_path / "good")

    def refuse(host: FakeHost) -> None:
        del host
        raise GpuStepFailed("the driver said no")

    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.fault = Fault(good.calls.index("cuda.restore") + 1, refuse, "before")
    with pytest.raises(GpuStepFailed, match="said no"):
        run(host, tmp_path / "bad")
    assert host.cuda == before.cuda
    assert not Journal(tmp_path / "bad" / "state").entries()


def test_a_restore_that_ran_out_of_memory_is_not_tried_again(tmp_path: Path) -> None:
    """The driver takes no second try of it: more calls only make it worse."""
    good = FakeHost.with_job()
    run(good, tmp_path / "good")

    def run_out(host: FakeHost) -> None:
        del host
        away = CudaState.CHECKPOINTED
        outcomes = [
            CudaOutcome(pid, "restore", "OUT_OF_MEMORY", away, away)
            for pid in (ROOT_PID + 1, ROOT_PID + 2)
        ]
        raise CudaCallFailed("restore", outcomes)

    host = FakeHost.with_job()
    host.fault = Fault(good.calls.index("cuda.restore") + 1, run_out, "before")
    with pytest.raises(UndoIncomplete, match="lost") as caught:
        run(host, tmp_path / "bad")
    assert host.calls.count("cuda.restore") == 1
    assert "last image" in caught.value.hint


def changed_afterwards(host: FakeHost, folder: Path, change: Any, **more: Any) -> RehearseResult:
    """Rehearse a job that is changed right after it was let go."""
    good = FakeHost.with_job()
    run(good, folder / "good", **more)
    host.fault = Fault(good.calls.index("cuda.unlock") + 1, change, "after")
    return run(host, folder / "changed", **more)


def test_a_job_that_does_not_come_back_as_it_was(tmp_path: Path) -> None:
    pid = ROOT_PID + 1

    def stop(host: FakeHost) -> None:
        host.processes[pid] = replace(host.processes[pid], state="T")

    def lose(host: FakeHost) -> None:
        host.gpu_bytes[pid] = GIB // 2
        host.processes[ROOT_PID] = replace(host.processes[ROOT_PID], threads=(1,))

    def end(host: FakeHost) -> None:
        del host.processes[pid], host.cuda[pid]

    found = {}
    for name, change in {"stop": stop, "lose": lose, "end": end}.items():
        result = changed_afterwards(FakeHost.with_job(), tmp_path / name, change)
        found[name] = [one.id for one in result.wrong]
        assert isinstance(verdict(result), RehearsalFailed)
    assert found["stop"][0] == "process-stopped"
    assert found["lose"] == ["gpu-memory-lost", "threads-ended"]
    assert found["end"][0] == "process-ended"


def test_a_job_that_moved_must_move_again(tmp_path: Path) -> None:
    class Moving(FakeHost):
        """A job that uses the CPU until it is let go."""

        def around(self, name: str, effect: Any) -> Any:
            if name == "proc.cpu_times" and "cuda.unlock" not in self.calls:
                self.ran[ROOT_PID] = self.ran.get(ROOT_PID, 0) + 1_000_000
            return super().around(name, effect)

    result = run(Moving.with_job(), tmp_path)
    assert result.moving == (True, False)
    assert [one.id for one in result.wrong] == ["no-progress"]


def test_a_damaged_image_is_kept_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = __import__("gpuckpt.flow.verify", fromlist=["verify"]).verify

    def spoil(path: Path, *others: Any) -> Any:
        stored = next((path / "criu").glob("pages-*"))
        data = bytearray(stored.read_bytes())
        data[20] ^= 255
        stored.chmod(0o600)
        stored.write_bytes(data)
        return real(path, *others)

    monkeypatch.setattr("gpuckpt.flow.rehearse.verify", spoil)
    host = FakeHost.with_job()
    with pytest.raises(RehearsalFailed, match="not as it was written"):
        run(host, tmp_path, real=True)
    assert set(host.cuda.values()) == {CudaState.RUNNING}
    assert (tmp_path / "scratch").exists()
