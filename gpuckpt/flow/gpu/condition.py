"""How the processes of a job are after something went wrong, beside how they had been."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.gpu.tree import states_of
from gpuckpt.model import Condition, CudaState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Process, Tree


def conditions(tools: Toolbox, tree: Tree, first: Mapping[int, CudaState]) -> tuple[Condition, ...]:
    """Return how every process is now; nothing if all of them are as they had been.

    `first` are the CUDA states they had been in. What nobody can tell is told as such.
    """
    try:
        now = states_of(tools, first) if first else {}
        told = True
    except GpuckptError:
        now, told = {}, False
    found = tuple(
        _condition(tools, one, first.get(one.pid), now, told=told) for one in tree.processes
    )
    return found if any(one.differs for one in found) else ()


def _condition(
    tools: Toolbox,
    was: Process,
    first: CudaState | None,
    now: Mapping[int, CudaState],
    *,
    told: bool,
) -> Condition:
    process = tools.proc.process(was.pid)
    there = process is not None and process.ref == was.ref and not process.zombie
    stopped = there and process is not None and process.stopped
    tracer = process.tracer if there and process is not None else 0
    cuda: CudaState | None = None
    if first is not None and there and told and not stopped:
        cuda = now.get(was.pid, CudaState.NONE)
    return Condition(
        pid=was.pid,
        command=was.command,
        exists=there,
        stopped=stopped,
        tracer=tracer,
        cuda=cuda,
        cuda_before=first,
        differs=not there
        or (stopped and not was.stopped)
        or (tracer != 0 and was.tracer == 0)
        or cuda != first,
    )
