"""What of a GPU is still in a process's hands when the driver has let go of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import GpuLeftover

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import DeviceUse


def check_leftovers(
    tools: Toolbox, pids: Iterable[int], cuda: Collection[int], inherited: frozenset[DeviceUse]
) -> frozenset[int]:
    """Make sure that no process still holds a GPU device of its own.

    What forked children have `inherited` from a process with CUDA is of no use to them, and CRIU
    gets a stand-in for it: the numbers of such devices are returned.

    Raises:
        GpuLeftover: one does, so CRIU could not dump it.
    """
    found = set(tools.proc.devices(pids))
    left = [use for use in found if use.pid in cuda or use not in inherited]
    if left:
        left.sort(key=lambda use: (use.pid, use.fd is None, use.fd or 0, use.path))
        names = ", ".join(
            f"pid {use.pid} {'maps' if use.fd is None else f'fd {use.fd} is'} {use.path}"
            for use in left[:8]
        )
        raise GpuLeftover(
            f"GPU devices stayed open after the driver's checkpoint: {names}",
            hint="Usual causes: a child that started while the job was dumped, a profiler, "
            "gdrcopy, RDMA, or a driver older than 570 with NVML in use.",
        )
    return frozenset(use.number for use in inherited if use in found)
