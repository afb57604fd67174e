"""plan of a process: what a dump would meet, take and need, and that nothing is touched to know.

The pass is the dump's own look; only the pages differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpuckpt.flow.look import Sight, look
from gpuckpt.flow.rules.gpu import GPU_NODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.errors import GpuckptError
    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.toolbox import Toolbox
    from gpuckpt.model import GpuUse, Process

Role = Literal["CUDA", "GPU files", "plain"]


@dataclass(frozen=True, slots=True)
class Row:
    """One process: what it is to the GPU, and what it holds where.

    `uses` has 0 bytes where NVML does not say; `indexes` are the GPUs' numbers, None for unknown.
    """

    process: Process
    role: Role
    uses: tuple[GpuUse, ...]
    indexes: tuple[int | None, ...]

    @property
    def gpu_bytes(self) -> int:
        """The bytes on all GPUs together."""
        return sum(use.bytes for use in self.uses)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a dump as asked for would meet; `error` is what it would be refused with."""

    request: DumpRequest
    sight: Sight
    rows: tuple[Row, ...]
    error: GpuckptError | None


def outlook(tools: Toolbox, request: DumpRequest, reporter: Reporter) -> Outlook:
    """Look at a job as a dump does, and stop there.

    Raises:
        NoSuchProcess, Forbidden: the pid names nothing that may be dumped.
    """
    with reporter.step("look", f"process {request.pid}"):
        sight = look(tools, request)
    return Outlook(request, sight, tuple(_rows(sight)), sight.error)


def _rows(sight: Sight) -> Iterator[Row]:
    facts = sight.facts
    cuda = set(facts.cuda_pids)
    holders = {node.pid for node in facts.look.nodes if GPU_NODE.fullmatch(node.path)}
    known = {gpu.uuid: gpu.index for gpu in facts.nvidia.gpus} if facts.nvidia else {}
    for process in facts.tree.processes:
        uses = tuple(use for use in facts.uses if use.pid == process.pid)
        role: Role = "plain"
        if process.pid in cuda:
            role = "CUDA"
        elif process.pid in holders:
            role = "GPU files"
        yield Row(process, role, uses, tuple(known.get(use.uuid) for use in uses))
