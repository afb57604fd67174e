"""What the driver refused, in words: why, what the process is now, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.errors import CudaCallFailed, GpuStepFailed, UndoIncomplete
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu.refusals import missing_access, translated
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.model import CudaOutcome, CudaState
from tests.fakes.host import ROOT_PID, FakeHost, Fault

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.model import HostFacts

RUNNING, LOCKED = CudaState.RUNNING, CudaState.LOCKED
AWAY, FAILED = CudaState.CHECKPOINTED, CudaState.FAILED
# action, error, state before, state after, what the sentence says, what the hint says
REFUSALS = [
    ("lock", "NOT_READY", RUNNING, RUNNING, "could not hold process 7 in time", "--lock-timeout"),
    ("checkpoint", "NOT_SUPPORTED", LOCKED, LOCKED, "it is locked and unharmed", "managed"),
    ("checkpoint", "OUT_OF_MEMORY", LOCKED, LOCKED, "the host has no memory", "MIG"),
    ("checkpoint", "OUT_OF_MEMORY", LOCKED, FAILED, "process 7 is lost", "last image"),
    ("restore", "OUT_OF_MEMORY", AWAY, AWAY, "is lost: GPU memory ran out", "last image"),
    ("restore", "OPERATING_SYSTEM", AWAY, AWAY, "an earlier restore of it failed", "last image"),
    ("restore", "INVALID_VALUE", AWAY, AWAY, "shares GPU memory", "NCCL"),
    ("restore", "NOT_SUPPORTED", AWAY, AWAY, "shares GPU memory", "NCCL"),
    ("unlock", "ILLEGAL_STATE", RUNNING, RUNNING, "not in the state that unlock needs", "status"),
    ("lock", "NOT_PERMITTED", RUNNING, RUNNING, "would not lock process 7", "dmesg"),
    ("state", "NO_ANSWER", None, None, "has not come back from state of process 7", "nvidia-smi"),
    ("checkpoint", "CALLER_LOST", LOCKED, AWAY, "its GPU memory is in host memory", "kernel's log"),
    ("lock", "BUSY", RUNNING, RUNNING, "another gpuckpt", "Wait"),
    ("restore", "UNEXPECTED", AWAY, None, "its state could not be read", ""),
]


def run(host: FakeHost, folder: Path) -> None:
    folder.mkdir()
    request = DumpRequest(ROOT_PID, folder / "image")
    dump(host.toolbox(folder), request, Silent(), Interrupts())


def refused(
    action: str, error: str, before: object, after: object, **more: object
) -> GpuStepFailed:
    outcome = CudaOutcome(7, action, error, **more)  # type: ignore[arg-type]
    outcome = replace(outcome, before=before, after=after)  # type: ignore[arg-type]
    return translated(CudaCallFailed(action, [outcome]))


@pytest.mark.parametrize(("action", "error", "before", "after", "said", "hint"), REFUSALS)
def test_each_error_of_each_call(  # noqa: PLR0917 - the columns of the table
    action: str, error: str, before: object, after: object, said: str, hint: str
) -> None:
    why = refused(action, error, before, after)
    assert said in why.message
    assert hint.lower() in why.hint.lower()
    assert why.excerpt


def test_a_process_that_died_is_never_called_a_timeout() -> None:
    why = refused("lock", "GONE", RUNNING, None, gone=True)
    assert why.message.startswith("process 7 died during lock")
    assert "NVML" in why.hint
    assert "has ended" in refused("lock", "GONE", None, None, gone=True).message


def test_a_map_that_was_refused_changed_nothing() -> None:
    outcome = CudaOutcome(7, "restore", "INVALID_VALUE", before=AWAY, after=AWAY)
    why = translated(CudaCallFailed("restore", [outcome]), mapped=True)
    assert "refused the map of GPUs" in why.message
    assert "lost" not in why.message


def test_many_processes_are_counted() -> None:
    many = [CudaOutcome(pid, "lock", "BUSY") for pid in range(5)]
    assert translated(CudaCallFailed("lock", many)).message.endswith("; and 2 more")


def test_what_gpuckpt_lacks_comes_before_what_the_driver_says(tmp_path: Path) -> None:
    """An initialization error is a missing privilege more often than a broken driver."""
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path)

    def poor() -> HostFacts:
        found: HostFacts = FakeHost().toolbox(tmp_path).host.facts()
        return replace(found, missing_capabilities=("CAP_SYS_PTRACE",), ptrace_scope=3)

    tools.host._tool.facts = poor  # type: ignore[attr-defined]
    outcome = CudaOutcome(ROOT_PID + 1, "lock", "NOT_INITIALIZED", after=RUNNING)
    why = translated(CudaCallFailed("lock", [outcome]), lambda pids: missing_access(tools, pids))
    assert "CAP_SYS_PTRACE" in why.hint
    assert "ptrace_scope is 3" in why.hint


def test_a_lost_process_is_told_as_lost_and_the_others_go_on(tmp_path: Path) -> None:
    """The driver gives one process up at the checkpoint: exit 10, and nobody else suffers."""
    host = FakeHost.with_job()
    one, other = ROOT_PID + 1, ROOT_PID + 2

    def give_up(host: FakeHost) -> None:
        host.cuda[one] = FAILED
        failed = CudaOutcome(one, "checkpoint", "NOT_SUPPORTED", before=LOCKED, after=FAILED)
        raise CudaCallFailed("checkpoint", [failed])

    probe = FakeHost.with_job()
    run(probe, tmp_path / "probe")
    number = probe.calls.index("cuda.checkpoint") + 1
    host.fault = Fault(number, give_up, "before")
    with pytest.raises(UndoIncomplete) as caught:
        run(host, tmp_path / "real")
    assert caught.value.exit_code == 10
    assert f"process {one} is lost" in caught.value.message
    assert "last image" in caught.value.hint
    assert host.cuda[other] is RUNNING
    assert not (tmp_path / "real" / "image").exists()
    told = {each.pid: each for each in caught.value.processes}
    assert (told[one].exists, told[one].cuda, told[one].cuda_before) == (True, FAILED, RUNNING)
    assert [pid for pid, each in told.items() if each.differs] == [one]


def test_nothing_is_told_of_processes_that_are_as_they_had_been(tmp_path: Path) -> None:
    host = FakeHost.with_job()

    def refuse(_host: FakeHost) -> None:
        outcome = CudaOutcome(ROOT_PID + 1, "checkpoint", "NOT_SUPPORTED", LOCKED, LOCKED)
        raise CudaCallFailed("checkpoint", [outcome])

    probe = FakeHost.with_job()
    run(probe, tmp_path / "probe")
    host.fault = Fault(probe.calls.index("cuda.checkpoint") + 1, refuse, "before")
    with pytest.raises(GpuStepFailed) as caught:
        run(host, tmp_path / "real")
    assert caught.value.exit_code == 5
    assert caught.value.processes == ()
