"""GPUs and their driver, as the flow sees them: a part of the toolbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuckpt.model import (
        CudaBackend,
        CudaState,
        GpuUse,
        NvidiaFacts,
    )


class NvidiaTool(Protocol):
    """NVML; on a host without an NVIDIA driver `facts` is None and nothing is used."""

    def facts(self) -> NvidiaFacts | None:
        """Return driver and GPUs."""

    def uses(self, pids: Iterable[int] | None = None) -> tuple[GpuUse, ...]:
        """Return the bytes the given processes, or all there are, hold on each GPU."""


class CudaTool(Protocol):
    """The driver's checkpoint calls over many processes, side by side.

    Every call takes pids, returns once all have an answer, and raises CudaCallFailed with the
    state of every pid read back if any of them refused. Nothing toggles: a process that is
    already where an action leads is left alone, one that is anywhere else is refused.
    """

    def describe(self) -> CudaBackend:
        """Say what makes the calls; DriverUnfit if there is a driver and nothing can."""

    def states(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """Ask the driver what it knows of each process; NONE for one that is gone."""

    def muster(self, count: int) -> None:
        """Begin to get ready to open so many processes, whichever they will be; does not wait."""

    def open(
        self, first: Mapping[int, CudaState], threads: Mapping[int, int] = ...
    ) -> dict[int, int]:
        """Get ready to act on these processes and to bring them back to `first` if we die.

        May be called again for more. `first` CHECKPOINTED means: leave it as it is. Returns the
        thread of each through which the driver works, 0 if it does not say; `threads` gives those
        of processes that are parked, which cannot be asked for it.
        """

    def lock(self, pids: Sequence[int], timeout: float) -> dict[int, CudaState]:
        """RUNNING to LOCKED, at most `timeout` seconds each."""

    def checkpoint(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """LOCKED to CHECKPOINTED: GPU bytes move into the process's own memory.

        A process whose restore thread is known is parked by it: stopped, and none of its threads
        has run since the driver took its state.
        """

    def restore(self, pids: Sequence[int], gpu_map: Mapping[str, str]) -> dict[int, CudaState]:
        """CHECKPOINTED to LOCKED; `gpu_map` old UUID to new, empty for the same GPUs.

        A parked process runs again after it.
        """

    def unlock(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """LOCKED to RUNNING."""

    def close(self) -> None:
        """Let go of all processes as they are now; no undo after this.

        Only a process whose call has not come back keeps its way back to `first`.
        """
