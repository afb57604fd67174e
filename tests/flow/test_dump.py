"""Dumps that meet a host which changes under their hands."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import (
    Blocked,
    CriuMissing,
    CudaCallFailed,
    DumpFailed,
    GpuLeftover,
    GpuLockTimeout,
    GpuStepFailed,
    ProcessLost,
)
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu.rounds import LONG_TRY_SECONDS, try_seconds
from gpuckpt.flow.request import DumpRequest, DumpResult
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.model import CudaOutcome, CudaState, DeviceUse, ProcessRef
from gpuckpt.tools.surroundings import Surroundings
from gpuckpt.tools.usedfiles import UsedFile
from tests.fakes.host import INIT_PID, ROOT_PID, FakeHost, Fault, NoCriu, process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def run(host: FakeHost, folder: Path, **changes: Any) -> DumpResult:
    (folder / "state").mkdir(exist_ok=True)
    request = replace(DumpRequest(ROOT_PID, folder / "image"), **changes)
    return dump(host.toolbox(folder / "state"), request, Silent(), Interrupts())


def number_of(name: str, folder: Path) -> int:
    """Return the number of a call in a dump that goes well."""
    host = FakeHost.with_job()
    folder.mkdir()
    run(host, folder)
    return host.calls.index(name) + 1


def test_a_job_in_a_namespace_is_written_down_by_its_own_numbers(tmp_path: Path) -> None:
    """GPU steps go by the pids of this host, CRIU and the manifest by those inside."""
    host = FakeHost.with_job()
    host.go_inside()
    manifest = run(host, tmp_path).manifest
    assert [one.pid for one in manifest.tree] == [100, 101, 102, 103]
    assert [one.host_pid for one in manifest.tree] == [ROOT_PID + number for number in range(4)]
    assert (manifest.root_pid, manifest.tree[0].ppid) == (100, 0)
    assert set(manifest.cuda) == {use.pid for use in manifest.nvidia.uses} == {101, 102}  # type: ignore[union-attr]
    assert [one.restore_thread for one in manifest.tree] == [0, 1101, 1102, 0]
    assert set(host.processes) == {os.getpid(), INIT_PID}


def test_the_clock_is_told_as_it_was_before_files_were_copied(tmp_path: Path) -> None:
    """They may take minutes, and CRIU has kept the job's clock before."""
    job = FakeHost.with_job()
    job.used += (UsedFile("/work/log", 1, 9, ("/work/log",), written=True),)
    (tmp_path / "good").mkdir()
    run(job, tmp_path / "good")
    host = FakeHost.with_job()
    host.used = job.used
    host.around_of[ROOT_PID] = Surroundings(clock=7.0)
    copied = job.calls.index("carried.copy") + 1

    def later(host: FakeHost) -> None:
        host.around_of[ROOT_PID] = Surroundings(clock=90.0)

    host.fault = Fault(copied, later, "after")
    assert run(host, tmp_path).manifest.tree[0].clock == 7.0


def test_what_was_seen_before_a_wait_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job's dump may take an hour; this job may be another one by then."""
    host = FakeHost.with_job()

    @contextmanager
    def turn(*_: object, **__: object) -> Iterator[bool]:
        host.cuda[ROOT_PID + 1] = CudaState.FAILED
        yield True

    monkeypatch.setattr("gpuckpt.flow.dump.turn", turn)
    with pytest.raises(Blocked) as caught:
        run(host, tmp_path)
    assert [one.id for one in caught.value.findings] == ["gpu-failed"]
    assert "cuda.lock" not in host.calls


@pytest.mark.parametrize("pid", [ROOT_PID, ROOT_PID + 1], ids=["root", "cuda"])
def test_a_pid_recycled_between_look_and_act_is_noticed(tmp_path: Path, pid: int) -> None:
    """A number is no identity: the stranger that has it now is not dumped."""

    def recycle(host: FakeHost) -> None:
        host.processes[pid] = replace(host.processes[pid], ref=ProcessRef(pid, 999_999))

    host = FakeHost.with_job()
    host.fault = Fault(number_of("cuda.lock", tmp_path / "good"), recycle, "before")
    with pytest.raises(ProcessLost):
        run(host, tmp_path)
    assert not (tmp_path / "image").exists()


@pytest.mark.parametrize("pid", [ROOT_PID + 1, ROOT_PID + 3])
def test_a_process_that_is_killed_while_its_memory_streams(tmp_path: Path, pid: int) -> None:
    """A rank is named, and nothing is left for a repair; a plain child is missed by nobody."""

    def kill(host: FakeHost) -> None:
        del host.processes[pid]
        host.cuda.pop(pid, None)
        raise DumpFailed("the CRIU of this test noticed it")

    host = FakeHost.with_job()
    host.fault = Fault(number_of("criu.dump", tmp_path / "good"), kill, "before")
    rank = pid in host.cuda
    with pytest.raises(ProcessLost if rank else DumpFailed) as caught:
        run(host, tmp_path)
    assert "the CRIU of this test noticed it" in str(caught.value)
    assert (f"process {pid} ended while a dump was at work on it" in str(caught.value)) == rank
    assert not (tmp_path / "image").exists()
    assert Journal(tmp_path / "state").entries() == ()


def test_what_a_killed_dump_had_is_removed_by_the_next(tmp_path: Path) -> None:
    """The entry, and the folder CRIU worked in."""
    dead = Entry(
        id="dead",
        operation="dump",
        started="2026-01-01T00:00:00Z",
        boot_id="boot",
        owner=ProcessRef(999_999, 1),
        image="/image",
        processes=(ProcessRef(ROOT_PID, 1),),
        first={},
    )
    Journal(tmp_path / "state").open(dead, lambda _ref: True)
    work = tmp_path / "state" / "run" / dead.id
    work.mkdir(parents=True)
    (work / "dump.log").write_text("cut short")
    run(FakeHost.with_job(), tmp_path)
    assert not list(work.parent.iterdir())
    assert not Journal(tmp_path / "state").entries()


def test_a_missing_criu_is_noticed_before_the_job_is_touched(tmp_path: Path) -> None:
    """A job whose GPU memory is as good as out must not learn then that there is no CRIU."""
    host = FakeHost.with_job()
    tools: Any = replace(host.toolbox(tmp_path), criu=NoCriu())
    request = DumpRequest(ROOT_PID, tmp_path / "image")
    with pytest.raises(CriuMissing, match="one finding stops"):
        dump(tools, request, Silent(), Interrupts())
    assert not {"cuda.open", "cuda.lock", "cuda.checkpoint"} & set(host.calls)
    assert not Journal(tmp_path).entries()


def test_a_process_that_starts_cuda_late_is_locked_too(tmp_path: Path) -> None:
    """Between looking and locking a child may begin to use the GPU."""
    newcomer = ROOT_PID + 90

    def start(host: FakeHost) -> None:
        host.processes[newcomer] = process(newcomer, ROOT_PID)
        host.cuda[newcomer] = CudaState.RUNNING
        host.gpu_bytes[newcomer] = 1 << 20

    host = FakeHost.with_job()
    host.fault = Fault(number_of("cuda.lock", tmp_path / "good"), start, "after")
    result = run(host, tmp_path)
    recorded = {one.pid: one.cuda for one in result.manifest.tree}
    assert recorded[newcomer] == CudaState.RUNNING
    assert newcomer not in host.processes


def test_a_device_left_open_ends_the_dump_by_name(tmp_path: Path) -> None:
    """CRIU could not dump it; the message names process, descriptor and path."""
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.leftover = ROOT_PID + 3
    with pytest.raises(GpuLeftover, match=f"pid {ROOT_PID + 3} fd 7 is /dev/nvidia0"):
        run(host, tmp_path)
    assert host.cuda == before.cuda
    assert host.processes == before.processes


def test_what_children_have_inherited_gets_a_stand_in(tmp_path: Path) -> None:
    """The restore must know of it; what is opened at the last moment has none."""
    host = FakeHost.with_job()
    host.leftover = ROOT_PID + 3
    host.inherited = frozenset({DeviceUse(ROOT_PID + 3, 7, "/dev/nvidia0", 195 << 8)})
    manifest = run(host, tmp_path).manifest
    assert manifest.options.stand_ins
    assert "device-stand-ins" in manifest.needs
    assert not run(
        FakeHost.with_job(), tmp_path, output=tmp_path / "other"
    ).manifest.options.stand_ins

    def opens(host: FakeHost) -> None:
        host.leftover = ROOT_PID

    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.leftover = ROOT_PID + 3
    host.inherited = frozenset({DeviceUse(ROOT_PID + 3, 7, "/dev/nvidia0", 195 << 8)})
    host.fault = Fault(number_of("criu.commit", tmp_path / "good"), opens, "before")
    with pytest.raises(GpuLeftover, match=f"pid {ROOT_PID} fd 7 is /dev/nvidia0"):
        run(host, tmp_path, output=tmp_path / "third")
    assert host.cuda == before.cuda


def test_a_lock_that_never_comes_is_given_up(tmp_path: Path) -> None:
    """All are let go again after every round, and in the end for good."""
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.busy = {ROOT_PID + 2}
    with pytest.raises(GpuLockTimeout, match=str(ROOT_PID + 2)):
        run(host, tmp_path, lock_timeout=0.5)
    assert host.cuda == before.cuda
    assert host.calls.count("cuda.lock") > 1


def test_a_lock_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    """Rounds are repeated until all are held at once."""
    host = FakeHost.with_job()
    host.busy, host.busy_rounds = {ROOT_PID + 2}, 2
    run(host, tmp_path, lock_timeout=20.0)
    assert host.calls.count("cuda.lock") == 3


def test_a_driver_that_does_not_answer_between_two_rounds(tmp_path: Path) -> None:
    """It is a failed GPU step, undone; not a bug."""

    def hang(_host: FakeHost) -> None:
        raise CudaCallFailed("state", [CudaOutcome(ROOT_PID + 1, "state", "NO_ANSWER")])

    probe = FakeHost.with_job()
    probe.busy, probe.busy_rounds = {ROOT_PID + 2}, 1
    (tmp_path / "good").mkdir()
    run(probe, tmp_path / "good")
    between = probe.calls.index("cuda.states", probe.calls.index("cuda.lock")) + 1
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.busy, host.busy_rounds = {ROOT_PID + 2}, 1
    host.fault = Fault(between, hang, "before")
    with pytest.raises(GpuStepFailed) as caught:
        run(host, tmp_path)
    assert caught.value.exit_code == 5
    assert host.cuda == before.cuda
    assert not (tmp_path / "image").exists()


def test_the_first_tries_of_a_lock_are_short_and_later_ones_longer() -> None:
    """Short ones fall between two collectives, long ones outlast a long kernel."""
    lengths = [try_seconds(number, LONG_TRY_SECONDS) for number in range(1, 40)]
    assert set(lengths[:10]) == {lengths[0]}
    assert lengths == sorted(lengths)
    assert lengths[-1] == LONG_TRY_SECONDS
    assert sum(lengths[:17]) < 6 < sum(lengths[:18])
