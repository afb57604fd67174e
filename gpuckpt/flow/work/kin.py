"""Where a process stands in its family: in a job, at its root, or above all jobs.

A job's root is the process somebody started as *the job*: never the shell, the session manager
or the scheduler's step that it was started from.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Process, Tree

# by the kernel's short name (at most 15 bytes): what starts jobs and is never part of one
_STARTERS = re.compile(
    r"""systemd|init|\(sd-pam\)|launchd|runit|runsv\w*|s6-.*|supervisord|dinit|
    login|su|sudo|doas|sshd.*|dropbear|mosh-server|cron|crond|atd|anacron|
    tmux.*|screen|SCREEN|zellij|dtach|abduco|script|
    containerd.*|conmon.*|runc|crun|dockerd|docker|podman|lxc-.*|kubelet|catatonit|
    slurmstepd|slurmd|pbs_mom|sge_execd|sge_shepherd|condor_.*|sbatchd|res|pueued|nomad|
    gpuckpt-init""",
    re.VERBOSE,
)
_SHELL = re.compile(r"-?(ba|da|z|k|mk|c|tc|fi|a|pw)?sh")


class Kin(Value, frozen=True):
    """What stands around a tree.

    `job` is the root of the bigger job that the tree is a part of, None if it is no part of one;
    `on_gpu` are the processes of that job beside the tree that hold a GPU.
    """

    job: Process | None = None
    on_gpu: tuple[int, ...] = ()


def climb(table: Mapping[int, Process], pid: int) -> int:
    """Return the root of the job that `pid` belongs to.

    Up while the parent is of the same process group, or of the same session unless it leads a
    terminal's; never to pid 1, to a shell somebody types into, to what starts jobs, or past a
    process that is not in the table.
    """
    while True:
        process = table[pid]
        parent = table.get(process.ppid)
        if parent is None or not _belongs(process, parent):
            return pid
        pid = parent.pid


def _belongs(process: Process, parent: Process) -> bool:
    if parent.pid == 1 or parent.kernel_thread or _STARTERS.fullmatch(parent.comm):
        return False
    if typed_into(parent):
        return False
    if parent.pgid == process.pgid:
        return True
    return parent.sid == process.sid and not _leads_terminal(parent)


def _leads_terminal(process: Process) -> bool:
    return process.pid == process.sid and process.tty != 0


def typed_into(process: Process) -> bool:
    """Whether it is a shell on a terminal without a script: somebody types into it.

    Without job control (`set +m`) such a shell shares its process group with what it starts.
    """
    if process.tty == 0 or not process.argv:
        return False
    words = process.argv[1:]
    scripted = any(not word.startswith("-") or "c" in word.lstrip("-") for word in words)
    return bool(_SHELL.fullmatch(process.argv[0].rpartition("/")[2])) and not scripted


def starts_jobs(process: Process) -> bool:
    """Whether it is a shell somebody types into, or what starts jobs and is never part of one."""
    return bool(_STARTERS.fullmatch(process.comm)) or typed_into(process) or _is_gpuckpt(process)


def _is_gpuckpt(process: Process) -> bool:
    """Whether it is a `gpuckpt run` or `restore --wait`, by program or as Python's argument."""
    names = [word.rpartition("/")[2] for word in process.argv]
    if "gpuckpt" not in names:
        return False
    interpreter = names[: names.index("gpuckpt")]
    return all(
        word.startswith("-" if number else "python") for number, word in enumerate(interpreter)
    )


def roots_below(processes: Iterable[Process], among: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the roots of the jobs in a tree whose own root starts jobs.

    `among` names the processes that matter, those with CUDA for example; all if there are none.
    """
    table = {one.pid: one for one in processes if not starts_jobs(one)}
    wanted = [pid for pid in among if pid in table] or list(table)
    found = {climb(table, pid) for pid in wanted}
    return tuple(sorted(pid for pid in found if not _has_above(table, table[pid], found)))


def kin(tools: Toolbox, tree: Tree) -> Kin:
    """Look whether a tree is only a part of a job.

    It is if its root's parents are of the same job by group or session, or if one of them holds
    a GPU: launchers give their workers sessions of their own.
    """
    me = os.getpid()
    ours = {me, *tools.proc.ancestors(me)}
    root = tree.root.pid
    if starts_jobs(tree.root):
        return Kin()
    above = [pid for pid in tools.proc.ancestors(root) if pid not in ours]
    processes = (tools.proc.process(pid) for pid in above)
    table = {one.pid: one for one in processes if one is not None and one.pid != 1}
    holders = _on_gpu(tools, [pid for pid, one in table.items() if not starts_jobs(one)])
    start = next((pid for pid in reversed(above) if pid in holders), root)
    top = climb(table | {root: tree.root}, start)
    if top == root:
        return Kin()
    try:
        whole = tools.proc.tree(top).pids
    except GpuckptError:  # gone since
        return Kin()
    return Kin(table[top], _on_gpu(tools, [pid for pid in whole if pid not in tree.pids]))


def _on_gpu(tools: Toolbox, pids: Iterable[int]) -> tuple[int, ...]:
    found: list[int] = []
    for pid in pids:
        try:
            found += tools.proc.cuda_candidates([pid])
        except GpuckptError:  # this user may not look, and says so of the tree itself
            continue
    return tuple(found)


def _has_above(table: Mapping[int, Process], process: Process, roots: set[int]) -> bool:
    above = table.get(process.ppid)
    while above is not None:
        if above.pid in roots:
            return True
        above = table.get(above.ppid)
    return False
