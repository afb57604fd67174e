"""GPU memory a driver's restore needs: how much, whether it is there, and who holds it if not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuMemoryShort

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import GpuUse

# the driver's own needs on top of what NVML counted for the process
MEMORY_MARGIN = 256 << 20
# NVML's figure for a process moves by the driver's own bookkeeping
TOLERANCE = 0.9
# GPU memory that a dead process held is given back a moment after its end
MEMORY_PATIENCE = 15.0
# how many processes a message names, and how much of each command line
MOST_HOLDERS, LONGEST_COMMAND = 3, 80


def memory_need(uses: Iterable[GpuUse], gpu_map: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes that must be free on each GPU, by its new UUID, for a driver's restore."""
    need: dict[str, int] = {}
    for use in uses:
        uuid = gpu_map.get(use.uuid, use.uuid)
        need[uuid] = need.get(uuid, MEMORY_MARGIN) + use.bytes
    return need


def shrunk(before: Iterable[GpuUse], now: Iterable[GpuUse], pid: int) -> str:
    """Say that a process holds clearly less GPU memory than before; empty if it does not."""
    had = sum(use.bytes for use in before if use.pid == pid)
    has = sum(use.bytes for use in now if use.pid == pid)
    if not has or has >= had * TOLERANCE:
        return ""
    return f"Process {pid} holds {has >> 20} MiB of GPU memory, it held {had >> 20}."


def freed(tools: Toolbox, before: Mapping[str, int]) -> dict[str, int]:
    """Return by how many bytes more of each GPU is free than `before`."""
    return {uuid: free - before[uuid] for uuid, free in free_of(tools).items() if uuid in before}


def free_of(tools: Toolbox) -> dict[str, int]:
    """Return the free bytes of each GPU."""
    facts = tools.nvidia.facts()
    return {gpu.uuid: gpu.memory_free for gpu in facts.gpus} if facts is not None else {}


def memory_short(tools: Toolbox, need: Mapping[str, int], but: Collection[int] = ()) -> str:
    """Return on which GPUs memory is missing and who holds it, in words; empty if on none.

    `but` are the processes that need it themselves.
    """
    facts = tools.nvidia.facts() if need else None
    if facts is None:
        return ""
    return "; ".join(
        f"GPU {gpu.index} has {gpu.memory_free >> 20} MiB free, "
        f"{need[gpu.uuid] >> 20} MiB are needed; {holders(tools, gpu.uuid, but)}"
        for gpu in facts.gpus
        if gpu.memory_free < need.get(gpu.uuid, 0)
    )


class MemoryWait:
    """Waiting for free GPU memory before a driver's restore.

    A restore that runs out of GPU memory leaves a process stuck for good (seen on 580.159), so the
    driver is not asked before there is room. All waits of one operation together are bounded: a
    second try finds out at once that nothing has changed.
    """

    def __init__(self, tools: Toolbox, note: Callable[[str], None]) -> None:
        """Tell `note` of a wait."""
        self._tools = tools
        self._note = note
        self._until: float | None = None

    def until_free(self, need: Mapping[str, int], pids: Collection[int], again: str) -> None:
        """Wait until each GPU has the room; `again` is what can be typed when it has.

        Raises:
            GpuMemoryShort: it has not, within a bounded time.
        """
        while short := memory_short(self._tools, need, pids):
            if self._until is None:
                self._until = time.monotonic() + MEMORY_PATIENCE
                self._note(f"{short}: waiting for it, at most {MEMORY_PATIENCE:g} s")
            if time.monotonic() >= self._until:
                raise GpuMemoryShort(
                    f"not enough free GPU memory to put process {min(pids)} back: {short}",
                    hint=f"When that memory is free again: {again}",
                )
            time.sleep(0.2)


def holders(tools: Toolbox, uuid: str, but: Collection[int] = ()) -> str:
    """Say who holds memory on a GPU, those first that hold most: pid, command and bytes."""
    listed = [use for use in tools.nvidia.uses() if use.uuid == uuid and use.pid not in but]
    listed.sort(key=lambda use: -use.bytes)
    if not listed:
        return "no process that NVML names holds the rest"
    named = ", ".join(_holder(tools, use) for use in listed[:MOST_HOLDERS])
    more = len(listed) - MOST_HOLDERS
    return f"held by {named}" + (f" and {more} more" if more > 0 else "")


def _holder(tools: Toolbox, use: GpuUse) -> str:
    process = tools.proc.process(use.pid)
    command = process.command if process else "not visible from here"
    if len(command) > LONGEST_COMMAND:
        command = command[: LONGEST_COMMAND - 3] + "..."
    size = f" with {use.bytes >> 20} MiB" if use.bytes else ""
    return f"process {use.pid} ({command}){size}"
