"""jobs: the GPU jobs of this node, each as the root of the tree a dump would take.

From every CUDA process the way leads up to the process somebody started as *the job*; how far
up that is, kin.py says.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from gpuckpt.errors import CudaCallFailed
from gpuckpt.flow.work.kin import climb
from gpuckpt.flow.work.tasks import ask_each
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda_wire import HELPER
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Process

# devices by which a process can hold a GPU; the driver then says whether it has CUDA
_NODE = re.compile(r"/dev/nvidia(ctl|\d+)")


class Job(Value, frozen=True):
    """One job: the root to dump, the processes of its tree with CUDA, and the bytes they hold."""

    root: Process
    cuda_pids: tuple[int, ...]
    gpu_bytes: int


def jobs(tools: Toolbox) -> tuple[Job, ...]:
    """Return the GPU jobs of this node, by root pid; none where there is no NVIDIA driver.

    Raises:
        NotPrivileged: not root, and this user may not look into all processes.
        DriverUnfit: nothing here can ask the driver.
    """
    if tools.nvidia.facts() is None:
        return ()
    cuda = _cuda_pids(tools)
    held: dict[int, int] = {}
    for use in tools.nvidia.uses(cuda):
        held[use.pid] = held.get(use.pid, 0) + use.bytes
    table: dict[int, Process] = {}
    # what runs this very gpuckpt, a runbook's script or a scheduler's step, is no job to be dumped
    me = os.getpid()
    above = {me, *tools.proc.ancestors(me)}
    for pid in {up for one in cuda for up in (one, *tools.proc.ancestors(one))} - above:
        process = tools.proc.process(pid)
        if process is not None:
            table[pid] = process
    return group(table, {pid: held.get(pid, 0) for pid in cuda})


def group(table: Mapping[int, Process], cuda: Mapping[int, int]) -> tuple[Job, ...]:
    """Put CUDA processes together into jobs; `cuda` maps each to its GPU bytes.

    A job whose root lies inside another job's tree is part of that one: a launcher that gives
    its workers sessions of their own still is their job.
    """
    roots = {pid: climb(table, pid) for pid in cuda if pid in table}
    tops = {pid: _topmost(table, root, set(roots.values())) for pid, root in roots.items()}
    return tuple(
        Job(
            root=table[root],
            cuda_pids=tuple(sorted(pid for pid, top in tops.items() if top == root)),
            gpu_bytes=sum(cuda[pid] for pid, top in tops.items() if top == root),
        )
        for root in sorted(set(tops.values()))
    )


def _topmost(table: Mapping[int, Process], root: int, roots: set[int]) -> int:
    top, above = root, table[root].ppid
    while above in table:
        if above in roots:
            top = above
        above = table[above].ppid
    return top


def _cuda_pids(tools: Toolbox) -> tuple[int, ...]:
    everyone = [pid for pid in tools.proc.pids() if not _ours(tools.proc.process(pid))]
    known = {use.pid for use in tools.nvidia.uses(everyone)}
    devices = ask_each(tools, tools.proc.devices, everyone)
    known |= {use.pid for use in devices if _NODE.fullmatch(use.path)}
    try:
        states = tools.cuda.states(sorted(known))
    except CudaCallFailed as why:
        # one process that does not answer must not hide the others, nor itself
        told = (one for one in why.outcomes if not one.gone)
        states = {one.pid: one.after or CudaState.FAILED for one in told}
    return tuple(pid for pid in sorted(states) if states[pid] is not CudaState.NONE)


def _ours(process: Process | None) -> bool:
    """Whether it is gpuckpt itself, or makes driver calls for one: it holds GPU devices too."""
    return process is not None and (process.pid == os.getpid() or HELPER in process.argv)
