"""What may be wrong with a restored tree although all of it is there: warnings, no failures.

Each of these has an innocent explanation. What is certainly wrong stands in proof.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuckpt.flow.returning.elapsed import made_at
from gpuckpt.model import CudaState, TcpPolicy, warning
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest, ProcessRecord
    from gpuckpt.model import Finding, GpuUse, Process
    from gpuckpt.tools.look import Look
    from gpuckpt.tools.signs import Signs

STANDARD = {0: "stdin", 1: "stdout", 2: "stderr"}
# the kernel's clocks and ours are not read at the same moment
CLOCK_TOLERANCE = 0.5
# a child this much younger than its job comes and goes: the sleep of a shell's loop
_FLEETING = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class Moment(Value, frozen=True):
    """Signs of life of every process of the tree, and the zombies that init has, at one moment."""

    signs: Mapping[int, Signs]
    neglected: frozenset[int]


def moment(tools: Toolbox, manifest: Manifest) -> Moment:
    """Look at the tree as it stands now."""
    found = {one.pid: tools.proc.signs(one.pid) for one in manifest.tree}
    return Moment(
        {pid: signs for pid, signs in found.items() if signs is not None}, tools.proc.neglected(1)
    )


def ran(before: Moment, after: Moment) -> bool:
    """Whether any process has used CPU time in between."""
    return any(
        pid in before.signs and signs.ran > before.signs[pid].ran
        for pid, signs in after.signs.items()
    )


def frozen(manifest: Manifest, before: Moment, after: Moment) -> Iterator[Finding]:
    """Sleeping is what jobs do; not to be interruptible in any thread for that long is not."""
    for one in manifest.tree:
        first, second = before.signs.get(one.pid), after.signs.get(one.pid)
        if first and second and first.stuck and second.stuck and first.ran == second.ran:
            what = "its driver call or its disk" if one.cuda is not CudaState.NONE else "its disk"
            yield warning(
                "no-progress",
                f"pid {one.pid}",
                f"No thread of process {one.pid} has run since the restore, all wait without end "
                f"for {what}.",
                "Look at /proc/PID/stack and the kernel's log; end it with SIGKILL if it stays so.",
                one.pid,
            )


def elsewhere(
    manifest: Manifest, gpu_map: Mapping[str, str], now: Iterable[GpuUse]
) -> Iterator[Finding]:
    """Without a map the driver goes by the order of the GPUs, and nobody but NVML tells where."""
    there: dict[int, set[str]] = {}
    for use in now:
        there.setdefault(use.pid, set()).add(use.uuid)
    for use in manifest.nvidia.uses if manifest.nvidia else ():
        wanted = gpu_map.get(use.uuid, use.uuid)
        if use.pid in there and wanted not in there[use.pid]:
            yield warning(
                "gpu-elsewhere",
                f"pid {use.pid}",
                f"Process {use.pid} was to come back on GPU {wanted}; NVML shows it on "
                f"{', '.join(sorted(there[use.pid]))}.",
                "Look whether it is alone there: its memory may be another job's share.",
                use.pid,
            )


def outputs(manifest: Manifest, look: Look) -> Iterator[Finding]:
    """Whoever had the other end of a pipe has not come along: output ends most programs.

    Not of a pipe that nobody outside had at the dump: its end was gone before, or goes by itself.
    """
    had = {(one.pid, one.fd) for one in manifest.outside.pipes}
    opened = [(task.process.pid, fd) for task in look.tasks for fd in task.descriptors]
    pipes = [(pid, fd) for pid, fd in opened if fd.kind == "pipe"]
    outside = {one.inode for one in look.pipes}
    read = outside | {fd.inode for _, fd in pipes if fd.reads}
    written = outside | {fd.inode for _, fd in pipes if fd.writes}
    lost = {fd.inode for pid, fd in pipes if (pid, fd.fd) in had}
    for pid, fd in pipes:
        alone = fd.inode not in (read if fd.writes else written)
        if fd.fd in STANDARD and alone and fd.inode in lost:
            yield lost_end(pid, fd.fd, writes=fd.writes)


def lost_end(pid: int, fd: int, *, writes: bool, holder: str = "") -> Finding:
    """Return what a pipe without its other end means."""
    had = f" (it was {holder})" if holder else ""
    name = STANDARD.get(fd, f"descriptor {fd}")
    if writes:
        reason = f"Nobody reads the {name} of process {pid} any more{had}: it may end with its next"
        reason += " line."
    else:
        reason = f"Nobody writes to the {name} of process {pid} any more{had}: it reads its end."
    remedy = "Start the job with its output in a file before the next dump."
    return warning("pipe-broken", f"fd {fd} {name}".strip(), reason, remedy, pid)


def copies(
    tools: Toolbox, manifest: Manifest, but: Iterable[int], *, apart: bool = False
) -> Iterator[Finding]:
    """A supervisor takes a dump for the job's death, and starts it anew.

    One in a pid namespace of ours somebody has asked for; with `apart` it counts all the same.
    """
    root = manifest.tree[0]
    since = made_at(manifest)
    if not root.argv or since is None:
        return
    own = set(but)
    for pid in tools.proc.copies(root.argv, root.cwd, since):
        process = tools.proc.process(pid)
        if process is None or process.zombie or _descends(tools, process, own):
            continue
        if not apart and tools.spaces.of(pid) is not None:
            continue
        yield _copy(process, tools.proc.process(process.ppid))


def _descends(tools: Toolbox, process: Process | None, own: Collection[int]) -> bool:
    """Whether it is one of `own`, or what one of them has started since they were listed."""
    while process is not None and process.pid not in own and process.ppid > 1:
        process = tools.proc.process(process.ppid)
    return process is not None and process.pid in own


def _copy(process: Process, parent: Process | None) -> Finding:
    by = f", started by process {parent.pid} ({parent.command[:80]})" if parent else ""
    return warning(
        "second-copy",
        f"pid {process.pid}",
        f"Process {process.pid} runs the same command in the same folder and is younger than the "
        f"dump{by}.",
        "If a supervisor took the dump for the job's end: stop the supervisor, then that copy.",
        process.pid,
    )


def orphans(tools: Toolbox, before: Moment, after: Moment) -> Iterator[Finding]:
    """A parent that does not wait for its children keeps the job's pids taken after its end."""
    left = before.neglected & after.neglected
    init = tools.proc.process(1)
    if left and init is not None:
        yield warning(
            "parent-does-not-wait",
            f"pid 1 ({init.comm})",
            f"Process 1 becomes the job's parent and has not waited for process {min(left)}, which "
            "has ended: the job's pid may stay taken after its end.",
            "Restore with --wait, which keeps gpuckpt as its parent, or give the container an "
            "init (docker run --init).",
            1,
        )


def clock(tools: Toolbox, manifest: Manifest) -> Iterator[Finding]:
    """A clock that counts from boot must go on where it stood: timers and deadlines hang on it."""
    root = manifest.tree[0]
    now = tools.proc.surroundings(root.pid).clock
    if root.clock and now and now < root.clock - CLOCK_TOLERANCE:
        yield warning(
            "clock-back",
            f"pid {root.pid}",
            f"The job's monotonic clock stands {root.clock - now:.0f} s before the time of the "
            "dump.",
            "Nothing to do, but timers that were set wait that much longer.",
            root.pid,
        )


def connections(manifest: Manifest, look: Look) -> Iterator[Finding]:
    """A connection that was kept may have been given up by its peer."""
    if manifest.options.tcp is not TcpPolicy.ESTABLISHED:
        return
    now = {(one.local_port, one.remote, one.remote_port) for one in look.tcp if one.connected}
    for one in manifest.outside.connections:
        if not one.closing and (one.local_port, one.remote, one.remote_port) not in now:
            yield warning(
                "connection-lost",
                f"tcp {one.remote}:{one.remote_port}",
                f"The job's connection to {one.remote}:{one.remote_port} is gone: its peer has "
                "given it up, or the job has closed it.",
                "Look whether the job connects again.",
            )


def unseen(why: OSError) -> Finding:
    """Return that the closer look could not be taken."""
    return warning(
        "look-incomplete",
        "restored job",
        f"The job is back, but could not be looked at more closely: {why.strerror or why}.",
        "Look at it yourself: its output, its ports, and whether a second copy runs.",
    )


def ended(manifest: Manifest, after: Moment) -> Iterator[Finding]:
    """A child may have come to its end as it would have without us; one that had just begun has."""
    for one in manifest.tree:
        if one.exe and one.pid not in after.signs and not _fleeting(manifest.tree[0], one):
            yield warning(
                "child-ended",
                f"pid {one.pid}",
                f"Process {one.pid} ({' '.join(one.argv)[:80]}) was restored and has ended since.",
                "Look at the job's own output if it should not have.",
                one.pid,
            )


def _fleeting(root: ProcessRecord, one: ProcessRecord) -> bool:
    """Whether it was so young at the dump, beside its job, that its end is the usual thing."""
    age, its = (root.clock - start / _TICKS for start in (root.start_time, one.start_time))
    return root.clock > 0 and its < age * _FLEETING
