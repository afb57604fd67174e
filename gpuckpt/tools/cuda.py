"""The CUDA driver's checkpoint calls over many processes: lock, checkpoint, restore, unlock.

Owns the call processes (cuda_helper): one for every opened process, so that calls run side by side
and one that hangs can be named, and a scout that answers what state any process is in. First
choice are the bindings of cuda-python, second the cuda-checkpoint program.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import Bug, CudaCallFailed
from gpuckpt.model import CudaBackend, CudaState
from gpuckpt.tools.cuda_crew import Crew, Patience
from gpuckpt.tools.cuda_wire import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuckpt.model import CudaOutcome
    from gpuckpt.tools.cuda_wire import Action
    from gpuckpt.tools.run import Runner

PROGRAM: Final = "cuda-checkpoint"
PROGRAM_VARIABLE: Final = "GPUCKPT_CUDA_CHECKPOINT"
_SIGNS: Final = ("dev/nvidiactl", "proc/driver/nvidia")


class NoCuda:
    """A host without an NVIDIA driver: no process has CUDA, and nothing is started."""

    def describe(self) -> CudaBackend:
        """See CudaTool."""
        return CudaBackend("none", note="no NVIDIA driver on this host")

    def states(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """See CudaTool."""
        return dict.fromkeys(pids, CudaState.NONE)

    def muster(self, count: int) -> None:
        """See CudaTool."""

    def open(
        self, first: Mapping[int, CudaState], threads: Mapping[int, int] = MappingProxyType({})
    ) -> dict[int, int]:
        """See CudaTool."""
        del threads
        _refuse(first)
        return {}

    def lock(self, pids: Sequence[int], timeout: float) -> dict[int, CudaState]:  # noqa: ARG002
        """See CudaTool."""
        return _refuse(pids)

    def checkpoint(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """See CudaTool."""
        return _refuse(pids)

    def restore(
        self,
        pids: Sequence[int],
        gpu_map: Mapping[str, str],  # noqa: ARG002
    ) -> dict[int, CudaState]:
        """See CudaTool."""
        return _refuse(pids)

    def unlock(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """See CudaTool."""
        return _refuse(pids)

    def close(self) -> None:
        """See CudaTool."""


class Cuda:
    """The calls on a host with an NVIDIA driver. One operation uses it, from one thread."""

    def __init__(
        self,
        runner: Runner,
        *,
        program: str | None = None,
        fallback: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            runner: starts the call processes.
            program: the cuda-checkpoint to be used in place of the bindings.
            fallback: the cuda-checkpoint to be used if the bindings cannot be.
            patience: how long to wait for answers.
        """
        self._patience = patience or Patience()
        self._crew = Crew(runner, program, fallback, self._patience)

    def describe(self) -> CudaBackend:
        """See CudaTool."""
        return self._crew.backend()

    def states(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """See CudaTool. A process that hangs is reported and the others are still asked.

        Raises:
            CudaCallFailed: some could not be told; NO_ANSWER for those whose read hangs.
            DriverUnfit: nothing here can ask the driver.
        """
        opened = {pid: Ask(id=0, action="state", pid=pid) for pid in pids if pid in self._crew}
        found = self._crew.ask(opened, self._patience.question)
        for pid in pids:
            if pid not in found:
                found[pid] = self._crew.scout(pid)
        return _result("state", (found[pid] for pid in pids))

    def muster(self, count: int) -> None:
        """See CudaTool."""
        self._crew.muster(count)

    def open(
        self, first: Mapping[int, CudaState], threads: Mapping[int, int] = MappingProxyType({})
    ) -> dict[int, int]:
        """See CudaTool.

        Raises:
            CudaCallFailed: a process is gone, or its state cannot be read.
            DriverUnfit: nothing here can ask the driver.
        """
        told = self._crew.open(first, threads) if first else {}
        _result("open", told.values())
        return {pid: one.restore_thread for pid, one in told.items()}

    def lock(self, pids: Sequence[int], timeout: float) -> dict[int, CudaState]:
        """See CudaTool. Raises CudaCallFailed; NOT_READY is the timeout."""
        milliseconds = max(1, math.ceil(timeout * 1000))  # 0 would be for ever
        asks = {pid: Ask(id=0, action="lock", pid=pid, timeout_ms=milliseconds) for pid in pids}
        return self._act("lock", asks, timeout + self._patience.grace)

    def checkpoint(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """See CudaTool. Raises CudaCallFailed."""
        asks = {pid: Ask(id=0, action="checkpoint", pid=pid) for pid in pids}
        return self._act("checkpoint", asks, self._patience.copy)

    def restore(self, pids: Sequence[int], gpu_map: Mapping[str, str]) -> dict[int, CudaState]:
        """See CudaTool. Raises CudaCallFailed; a refused map changes nothing.

        The caller has looked at the free GPU memory before: a restore that runs out of it leaves
        the process stuck for good (driver 580).
        """
        asks = {pid: Ask(id=0, action="restore", pid=pid, gpu_map=dict(gpu_map)) for pid in pids}
        return self._act("restore", asks, self._patience.copy)

    def unlock(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """See CudaTool. Raises CudaCallFailed."""
        asks = {pid: Ask(id=0, action="unlock", pid=pid) for pid in pids}
        return self._act("unlock", asks, self._patience.unlock)

    def close(self) -> None:
        """See CudaTool."""
        self._crew.let_go()

    def _act(
        self, action: Action, asks: Mapping[int, Ask], patience: float
    ) -> dict[int, CudaState]:
        strangers = [pid for pid in asks if pid not in self._crew]
        if strangers:
            raise Bug(f"asked to {action} processes that were never opened: {strangers}")
        return _result(action, self._crew.ask(asks, patience).values())


def choose(
    runner: Runner, *, root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> Cuda | NoCuda:
    """Return the CUDA tool for this host.

    GPUCKPT_CUDA_CHECKPOINT names a cuda-checkpoint program that is to be used whatever else there
    is. Nothing is started before the first question.
    """
    named = (os.environ if environ is None else environ).get(PROGRAM_VARIABLE)
    if named:
        return Cuda(runner, program=_absolute(shutil.which(named) or named))
    if not any((root / sign).exists() for sign in _SIGNS):
        return NoCuda()
    found = shutil.which(PROGRAM)
    return Cuda(runner, fallback=_absolute(found) if found else None)


def _absolute(program: str) -> str:
    """Return what a call process, which works in another folder, can start."""
    return str(Path(program).absolute()) if os.sep in program else program


def _result(action: str, outcomes: Iterable[CudaOutcome]) -> dict[int, CudaState]:
    """Return the state of each process, or raise what came of all."""
    told = tuple(outcomes)
    if not all(outcome.ok for outcome in told):
        raise CudaCallFailed(action, told)
    return {outcome.pid: outcome.after or CudaState.NONE for outcome in told}


def _refuse(pids: Iterable[int]) -> dict[int, CudaState]:
    """Act on no process: fine if none is asked for."""
    if asked := list(pids):
        raise Bug(f"asked to act on {asked} on a host without an NVIDIA driver")
    return {}
