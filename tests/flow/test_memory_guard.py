"""GPU memory that somebody else took while a job's state was away: nothing is lost, he is named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.errors import GpuckptError, UndoIncomplete
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu import memory
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.model import CudaState, ProcessRef
from tests.fakes.host import GIB, ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from pathlib import Path

FILLER = ROOT_PID + 500


class Notes(Silent):
    """A reporter that remembers its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMORY_PATIENCE", 0.1)


def fill(host: FakeHost) -> None:
    """Let a stranger take all but a little of the GPU."""
    host.processes[FILLER] = process(FILLER, argv=("python", "fill.py"))
    host.strangers[FILLER] = host.gpu_free - GIB


def run(host: FakeHost, folder: Path, notes: Notes, *, leave_running: bool) -> None:
    folder.mkdir()
    request = DumpRequest(ROOT_PID, folder / "image", leave_running=leave_running)
    host.interrupts = Interrupts()
    dump(host.toolbox(folder / "state"), request, notes, host.interrupts)


@pytest.mark.parametrize("leave_running", [False, True])
def test_the_driver_is_not_asked_without_room(tmp_path: Path, *, leave_running: bool) -> None:
    """In a rollback (CRIU fails) and with --leave-running alike."""
    good = FakeHost.with_job()
    run(good, tmp_path / "good", Notes(), leave_running=leave_running)

    def happen(host: FakeHost) -> None:
        fill(host)
        if not leave_running:
            raise OSError(5, "the disk broke")

    host, notes = FakeHost.with_job(), Notes()
    host.fault = Fault(good.calls.index("criu.image.pstree.img") + 1, happen, "before")
    with pytest.raises(UndoIncomplete) as caught:
        run(host, tmp_path / "short", notes, leave_running=leave_running)
    assert f"held by process {FILLER} (python fill.py) with" in caught.value.message
    assert f"gpuckpt repair {ROOT_PID + 1}" in caught.value.hint
    assert "stopped" not in caught.value.message, "that is not another thing left"
    assert "cuda.restore" not in host.calls
    assert host.cuda == dict.fromkeys(host.cuda, CudaState.CHECKPOINTED)
    assert not host.armed, "the dead man's switch must not act behind our back"
    assert len(Journal(tmp_path / "short" / "state").entries()) == 1
    assert [note for note in notes.notes if "waiting for it, at most" in note]
    assert_repair_waits_for_room(host, tmp_path / "short" / "state")


def assert_repair_waits_for_room(host: FakeHost, state: Path) -> None:
    """A repair that comes too early says who is in the way, the next one brings the job back."""
    me, asked, calm = os.getpid(), RepairRequest(ROOT_PID), Interrupts()
    host.processes[me] = process(me, ref=ProcessRef(me, 1))  # another gpuckpt
    early = repair(host.toolbox(state), asked, Silent(), calm)
    assert f"held by process {FILLER} (python fill.py)" in early.left[0].reason
    assert "cuda.restore" not in host.calls
    del host.strangers[FILLER]
    assert not repair(host.toolbox(state), asked, Silent(), calm).left
    assert set(host.cuda.values()) == {CudaState.RUNNING}
    assert not Journal(state).entries()


def test_memory_that_comes_back_in_time_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filler ends while we wait."""
    monkeypatch.setattr(memory, "MEMORY_PATIENCE", 60.0)
    good = FakeHost.with_job()
    run(good, tmp_path / "good", Notes(), leave_running=False)
    host, before = FakeHost.with_job(), FakeHost.with_job()

    class Freeing(Notes):
        def note(self, text: str) -> None:
            super().note(text)
            host.strangers.clear()

    def happen(host: FakeHost) -> None:
        host.strangers[FILLER] = host.gpu_free
        raise OSError(5, "the disk broke")

    host.fault = Fault(good.calls.index("criu.image.pstree.img") + 1, happen, "before")
    notes = Freeing()
    with pytest.raises((GpuckptError, OSError)) as caught:
        run(host, tmp_path / "late", notes, leave_running=False)
    assert not isinstance(caught.value, UndoIncomplete)
    assert host.cuda == before.cuda
    assert "not visible from here" in "".join(notes.notes)


class Reticent(FakeHost):
    """A host whose NVML does not say which process holds what, as in some containers."""

    def around(self, name: str, effect: Any) -> Any:
        if name == "criu.image.pstree.img":
            fill(self)
            raise OSError(5, "the disk broke")
        result = super().around(name, effect)
        if name == "cuda.checkpoint":
            self.gpu_free += 2 * GIB
        return result


def test_where_nobody_tells_the_share_of_a_job(tmp_path: Path) -> None:
    """What became free with the checkpoint is what has to be free again."""
    host = Reticent.with_job()
    host.gpu_bytes.clear()
    with pytest.raises(UndoIncomplete, match="1024 MiB free, 2304 MiB are needed; held by process"):
        run(host, tmp_path / "short", Notes(), leave_running=False)
    assert "cuda.restore" not in host.calls
