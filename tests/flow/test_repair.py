"""status, repair and gc on a host in memory: what is told, what is put back, what is let be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import NoSuchProcess, ProcessUnfit, Unfinished
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gc import GcRequest, gc
from gpuckpt.flow.gpu import memory
from gpuckpt.flow.leftovers.recover import concerns
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.status import status
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.flow.work.traces import Linked, Placed
from gpuckpt.image.stage import Stage
from gpuckpt.model import CudaState, GpuUse, ProcessRef
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.cutting import Cut
from gpuckpt.tools.files import Files, Remap
from tests.fakes.host import GIB, ROOT_PID, FakeHost, FakeRank, process

CUDA = ROOT_PID + 1
CALM = Interrupts()


def entry(host: FakeHost, **changes: Any) -> Entry:
    """Return what a dump of the job leaves that was killed after the checkpoint."""
    fields: dict[str, Any] = {
        "id": "dead",
        "operation": "dump",
        "started": "2026-01-01T00:00:00Z",
        "boot_id": "boot",
        "owner": ProcessRef(999_999, 1),
        "image": "/image",
        "processes": tuple(one.ref for one in host.processes.values() if one.pid >= ROOT_PID),
        "first": {CUDA: CudaState.RUNNING},
        "threads": {CUDA: CUDA + 1000},
        "uses": (GpuUse(CUDA, "GPU-0", GIB),),
        "step": "checkpoint",
    }
    return Entry(**(fields | changes))


def left(host: FakeHost, state: Path, *entries: Entry) -> list[tuple[str, int | None]]:
    for one in entries:
        Journal(state).open(one, lambda _ref: False)
    seen = status(host.toolbox(state))
    return [(one.id, one.pid) for unfinished in seen.unfinished for one in unfinished.left]


def mend(host: FakeHost, state: Path, pid: int | None = None) -> Any:
    return repair(host.toolbox(state), RepairRequest(pid), Silent(), CALM)


def park(host: FakeHost) -> None:
    host.cuda[CUDA] = CudaState.CHECKPOINTED
    host.processes[CUDA] = replace(host.processes[CUDA], state="T")


def test_too_little_memory_names_the_holder_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver restore that runs out of memory is stuck for good, so it is not tried."""
    monkeypatch.setattr(memory, "MEMORY_PATIENCE", 0.0)
    host = FakeHost.with_job(cuda=1)
    park(host)
    assert left(host, tmp_path, entry(host)) == [("left-parked", CUDA)]
    host.gpu_free = 1 << 20
    host.processes[77] = process(77)
    host.strangers = {77: 100 * GIB}
    result = mend(host, tmp_path)
    assert "77" in result.left[0].reason
    assert host.processes[CUDA].state == "T", "it must not run without its GPU state"
    assert host.cuda[CUDA] is CudaState.CHECKPOINTED
    assert Journal(tmp_path).entries()
    host.gpu_free, host.strangers = 100 * GIB, {}
    assert not mend(host, tmp_path).left
    assert host.cuda[CUDA] is CudaState.RUNNING
    assert host.processes[CUDA].state == "S"


def test_only_what_we_stopped_is_woken(tmp_path: Path) -> None:
    """A process that somebody else has stopped since stays stopped, and is told of."""
    host = FakeHost.with_job(cuda=1)
    host.processes[ROOT_PID] = replace(host.processes[ROOT_PID], state="T")
    assert left(host, tmp_path, entry(host)) == [("stopped", ROOT_PID)]
    assert not mend(host, tmp_path).left
    assert host.processes[ROOT_PID].state == "T"


def test_a_stranger_with_the_pid_is_never_touched(tmp_path: Path) -> None:
    """The numbers were given again, to processes that are none of ours."""
    host = FakeHost.with_job(cuda=1)
    old = tuple(ProcessRef(ref.pid, 1) for ref in entry(host).processes)
    park(host)
    made = entry(host, id="b", operation="restore", processes=old, image="/b", pids=(CUDA,))
    assert left(host, tmp_path, entry(host, processes=old), made) == []
    before = dict(host.processes)
    assert not mend(host, tmp_path).left
    assert host.processes == before
    assert host.cuda[CUDA] is CudaState.CHECKPOINTED


def test_a_restored_job_that_runs_is_never_ended(tmp_path: Path) -> None:
    """Gpuckpt was killed while it waited for the probe: whatever the job does since is its own."""
    host = FakeHost.with_job(cuda=1)
    pids = tuple(ref.pid for ref in entry(host).processes)
    one = entry(host, operation="restore", step="verify", pids=pids)
    host.processes[CUDA] = replace(host.processes[CUDA], state="T")
    before = dict(host.processes)
    assert left(host, tmp_path, one) == []
    assert not mend(host, tmp_path).left
    assert host.processes == before


@pytest.mark.parametrize("ended", [ROOT_PID, ROOT_PID + 1, ROOT_PID + 2])
def test_a_restored_job_runs_though_a_child_has_ended(tmp_path: Path, ended: int) -> None:
    """Killed before its last look; since then the job has run, and a child of it has ended."""
    host = FakeHost.with_job(cuda=1)
    pids = tuple(ref.pid for ref in entry(host).processes)
    one = entry(host, operation="restore", step="made", pids=pids)
    del host.processes[ended]
    before = dict(host.processes)
    found = left(host, tmp_path, one)
    assert not mend(host, tmp_path).left
    if ended == ROOT_PID + 2:
        assert found == []
        assert host.processes == before
    else:  # without its root or its GPU process it is no job any more
        assert {id_ for id_, _ in found} == {"left-half-restored"}
        assert set(host.processes) == {os.getpid()}


def test_two_repairs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one had it done before ours began: nothing is done or claimed a second time."""
    host = FakeHost.with_job(cuda=1)
    one = entry(host)
    assert left(host, tmp_path, one) == []
    monkeypatch.setattr(Journal, "ids", lambda _: frozenset())
    assert not mend(host, tmp_path).done
    assert host.calls.count("cuda.open") == 0


def test_after_a_reboot_only_files_are_left(tmp_path: Path) -> None:
    """Processes of another boot are gone, whatever has their numbers now."""
    host = FakeHost.with_job(cuda=1)
    park(host)
    stage = Stage.create(tmp_path / "image")
    stage.close()
    (tmp_path / "state" / "run" / "dead").mkdir(parents=True)
    one = entry(host, boot_id="before", stage=str(stage.folder))
    found = left(host, tmp_path / "state", one)
    assert [id_ for id_, _ in found] == ["left-stage", "left-run-folder"]
    mend(host, tmp_path / "state")
    assert not stage.folder.exists()
    assert host.cuda[CUDA] is CudaState.CHECKPOINTED
    assert not Journal(tmp_path / "state").entries()


def test_names_that_criu_made(tmp_path: Path) -> None:
    """Of the job's own file, and not there before: nothing else is removed."""
    host = FakeHost.with_job(cuda=1)
    mine = Remap("/dev/shm/link_remap.3", 1, 5, 0)
    others = [Remap("/dev/shm/link_remap.1", 1, 5, 0), Remap("/dev/shm/link_remap.2", 1, 6, 0)]
    host.remaps = [mine, *others]
    linked = Linked(folder="/dev/shm", device=1, inode=5, before=(others[0].path,))
    assert left(host, tmp_path, entry(host, linked=(linked,))) == [("left-remap", None)]
    assert not mend(host, tmp_path).left
    assert host.remaps == others


def test_a_kernel_without_packet_filters(tmp_path: Path) -> None:
    """Nothing can be left in one; a new dump of the job is not kept by that."""
    host = FakeHost.with_job(cuda=1)
    host.no_filters = True
    Journal(tmp_path).open(entry(host, step="opened"), lambda _ref: False)
    assert not mend(host, tmp_path).left
    assert not Journal(tmp_path).entries()


def test_ranks_go_on_though_the_setting_cannot_be_put_back(tmp_path: Path) -> None:
    host = FakeHost.with_job(cuda=1)
    host.ranks = {CUDA: FakeRank(arrived=9, quiet=9, confirmed=9)}
    host.huge_pages, host.huge_pages_fixed = "always", True
    Journal(tmp_path).open(entry(host, quiesced=True, huge_pages="madvise"), lambda _ref: False)
    assert "left at always" in mend(host, tmp_path).left[0].reason
    assert not host.ranks[CUDA].quiet


def test_another_job_is_only_told_of(tmp_path: Path) -> None:
    """A dump of one job neither waits for nor touches what another one left."""
    host = FakeHost.with_job(cuda=1)
    other = process(500)
    host.processes[500] = other
    host.cuda[500] = CudaState.LOCKED
    host.gpu_bytes[500] = GIB
    one = entry(host, processes=(other.ref,), first={500: CudaState.RUNNING}, image="/other")
    assert left(host, tmp_path, one) == [("left-locked", 500)]
    notes: list[str] = []
    reporter = Silent()
    reporter.note = notes.append  # type: ignore[method-assign]
    dump(host.toolbox(tmp_path), DumpRequest(ROOT_PID, tmp_path / "image"), reporter, CALM)
    assert any("process 500" in note for note in notes)
    assert host.cuda[500] is CudaState.LOCKED
    with pytest.raises(Unfinished):
        dump(host.toolbox(tmp_path), DumpRequest(500, tmp_path / "b"), Silent(), CALM)


def test_a_living_operation_is_let_be(tmp_path: Path) -> None:
    """It is shown as at work, nobody repairs it, and nobody else works on its tree or image."""
    host = FakeHost.with_job(cuda=1)
    park(host)
    one = entry(host, owner=host.processes[os.getpid()].ref)
    Journal(tmp_path).open(one, lambda _ref: True)
    seen = status(host.toolbox(tmp_path))
    assert (seen.at_work, seen.unfinished) == ((one,), ())
    assert not mend(host, tmp_path).done
    for pid in (ROOT_PID, CUDA):
        with pytest.raises(ProcessUnfit, match="another gpuckpt"):
            mend(host, tmp_path, pid)
        with pytest.raises(ProcessUnfit, match="another gpuckpt"):
            dump(host.toolbox(tmp_path), DumpRequest(pid, tmp_path / "b"), Silent(), CALM)
    assert concerns(one, (), "/image")


def test_a_job_that_is_gone_is_told_of_where_a_run_was_cut_short(tmp_path: Path) -> None:
    """Who asks about a pid that a dead run has ended is not told that there is no such process."""
    host = FakeHost.with_job(cuda=1)
    one = entry(host)
    Journal(tmp_path).open(one, lambda _ref: False)
    host.processes.clear()
    seen = status(host.toolbox(tmp_path), ROOT_PID)
    assert [left.entry.id for left in seen.unfinished] == [one.id]
    assert (seen.job, seen.logs) == ((), ())
    with pytest.raises(NoSuchProcess):
        status(host.toolbox(tmp_path), ROOT_PID + 77)


def test_suspended_by_somebody_else(tmp_path: Path) -> None:
    """Told without any entry; touched only by a repair that names it."""
    host = FakeHost.with_job(cuda=2)
    host.cuda |= {CUDA: CudaState.CHECKPOINTED, CUDA + 1: CudaState.FAILED}
    seen = status(host.toolbox(tmp_path))
    told = {(one.id, one.pid) for one in seen.strangers}
    assert told == {("left-checkpointed", CUDA), ("left-failed", CUDA + 1)}
    assert not mend(host, tmp_path).done
    result = mend(host, tmp_path, ROOT_PID)
    assert [deed.pid for deed in result.done] == [CUDA]
    assert [one.id for one in result.left] == ["left-failed"]
    assert host.cuda[CUDA] is CudaState.RUNNING
    assert not Journal(tmp_path).entries()


def test_gc_removes_litter_and_never_an_image(tmp_path: Path) -> None:
    """Stages nobody writes, forgotten work folders, old logs, unneeded names of CRIU."""
    host, state = FakeHost.with_job(cuda=1), tmp_path / "state"
    for name in ("gone", "written"):
        Stage.create(tmp_path / name).close() if name == "gone" else None
    living = Stage.create(tmp_path / "written")
    (state / "run" / "forgotten").mkdir(parents=True)
    (state / "logs").mkdir()
    for name in ("old", "new"):
        (state / "logs" / name).write_text(name)
    os.utime(state / "logs" / "old", (0, 0))
    dump(host.toolbox(state), DumpRequest(ROOT_PID, tmp_path / "image"), Silent(), CALM)
    host.remaps = [Remap(f"{tmp_path}/link_remap.{number}", 1, number, 4096) for number in (1, 2)]
    host.users = {f"{tmp_path}/link_remap.2": 7}
    request = GcRequest((tmp_path,), dry_run=True)
    would = gc(host.toolbox(state), request, CALM)
    kinds = sorted(one.kind for one in would.removed)
    assert kinds == ["log", "remap file", "run folder", "stage"]
    assert (state / "logs" / "old").exists()
    host.processes[ROOT_PID] = process(ROOT_PID)
    assert status(host.toolbox(state), ROOT_PID).last.endswith(": done")
    done = gc(host.toolbox(state), replace(request, dry_run=False), CALM)
    assert done.removed == would.removed
    assert [path for path, _ in done.kept] == [f"{tmp_path}/link_remap.2"]
    assert living.folder.exists()
    assert (tmp_path / "image" / "manifest.json").exists()
    assert not gc(host.toolbox(state), request, CALM).removed
    living.discard()


def test_a_step_that_was_never_written_to_its_end_goes_with_its_entry(tmp_path: Path) -> None:
    """SIGKILL while a step was written; or while the run wrote that it begins."""
    host = FakeHost.with_job(cuda=0)
    Journal(tmp_path).open(
        entry(host, id="a", first={}, threads={}, uses=(), step="opened"), lambda _ref: False
    )
    half, alone = (tmp_path / "journal" / name for name in ("a.new", "b.new"))
    for path in (half, alone):
        path.touch()
        os.utime(path, (0, 0))
    told = status(host.toolbox(tmp_path)).files
    assert ["gpuckpt gc" in one.remedy for one in told if one.id == "journal-entry"] == [True] * 2
    removed = gc(host.toolbox(tmp_path), GcRequest(), CALM).removed
    assert [(one.kind, one.path) for one in removed] == [("journal", str(alone))]
    assert half.exists()
    assert not alone.exists()
    mend(host, tmp_path)
    assert not half.exists()


def test_gc_spares_what_an_unreadable_entry_may_need(tmp_path: Path) -> None:
    """A newer gpuckpt's work folder and CRIU names, be it at work or cut short."""
    host, work = FakeHost.with_job(cuda=1), tmp_path / "run" / "newer"
    work.mkdir(parents=True)
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "newer.json").write_text('{"format": 2}')
    host.remaps = [Remap(f"{tmp_path}/link_remap.1", 1, 1, 4096)]
    result = gc(host.toolbox(tmp_path), GcRequest((tmp_path,)), CALM)
    assert not result.removed
    assert "newer.json" in result.kept[0][1]
    assert [one.id for one in status(host.toolbox(tmp_path)).files] == ["journal-entry"]


@pytest.mark.parametrize(
    ("boot_id", "step", "processes", "back"),
    [
        ("boot", "criu", False, True),
        ("boot", "made", True, True),
        ("boot", "verify", True, False),
        ("before", "criu", False, True),
        ("before", "made", True, False),
        ("before", "verify", True, False),
    ],
)
def test_files_of_a_job_that_went_on_are_its_own(
    tmp_path: Path,
    boot_id: str,
    step: str,
    processes: bool,
    back: bool,
) -> None:
    """It may have worked for days and ended since: what it wrote is not undone."""
    host = FakeHost.with_job(cuda=1)
    real = Carried(Path("/proc"))
    tools = replace(host.toolbox(tmp_path / "state"), carried=real, files=Files())
    log, made = tmp_path / "log", tmp_path / "made"
    log.write_bytes(b"12345")
    (tmp_path / "log.after").write_bytes(b" and more")
    (tmp_path / "made.replaced").write_bytes(b"today")
    made.write_bytes(b"the work of days")
    seen, other = log.stat(), made.stat()
    cut = Cut(str(log), seen.st_dev, seen.st_ino, 5, 14, 1, str(tmp_path / "log.after"))
    placed = Placed(
        device=other.st_dev,
        inode=other.st_ino,
        names=(str(made),),
        aside=((str(made), f"{made}.replaced"),),
        kept=True,
    )
    gone = (ProcessRef(CUDA + 7, 1),) if processes else ()
    one = entry(
        host,
        operation="restore",
        boot_id=boot_id,
        step=step,
        placed=(placed,),
        cuts=(cut,),
        processes=gone,
        first={},
    )
    Journal(tmp_path / "state").open(one, lambda _ref: False)
    result = repair(tools, RepairRequest(), Silent(), CALM)
    assert not result.left
    told = " ".join(deed.text for deed in result.done)
    if back:
        assert (log.read_bytes(), made.read_bytes()) == (b"12345 and more", b"today")
        assert "it has its later bytes again" in told
        assert "it was put back" in told
    else:
        assert (log.read_bytes(), made.read_bytes()) == (b"12345", b"the work of days")
        assert f"kept for you: {log}.after" in told
