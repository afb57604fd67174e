"""Processes as the kernel shows them: trees, identities, device files, and the end of them.

A pid alone is no identity: whoever acts on a process carries its start time too, and it is
compared again here before anything is done. A process that vanishes between two reads is the
normal case, never an error, except for the one that was asked for.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import NoSuchProcess, NotPrivileged
from gpuckpt.model import DeviceUse, Process, ProcessRef, Tree
from gpuckpt.tools.descriptors import plain, targets
from gpuckpt.tools.forks import inherited
from gpuckpt.tools.look import Look, look
from gpuckpt.tools.mappings import mappings
from gpuckpt.tools.pidspace_init import deliver
from gpuckpt.tools.procfs import (
    Stat,
    cpu_times,
    kibibytes,
    link,
    numbers,
    parse_stat,
    parse_status,
    read,
    stats,
    text,
)
from gpuckpt.tools.remains import half_made, send, users
from gpuckpt.tools.signs import Signs, copies, neglected, signs
from gpuckpt.tools.surroundings import Surroundings, surroundings
from gpuckpt.tools.timers import fire

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_PASSES: Final = 20
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_CHILD_SUBREAPER: Final = 36  # <linux/prctl.h>
_LIBCUDA: Final = re.compile(r"/libcuda\.so[.0-9]*$")
_GPU_NODES: Final = re.compile(r"/dev/(nvidia[^/]*(/.*)?|gdrdrv|infiniband/.*)")


class Proc:
    """The processes under one /proc."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        """Read from `root`: a recorded folder serves as well as the real one."""
        self.root = root

    def tree(self, pid: int) -> Tree:
        """Return the process and all its descendants, parents before children.

        Listed again until two passes agree; a tree that forks faster than it can be read is
        given as the last pass saw it.

        Raises:
            NoSuchProcess: there is no such process.
        """
        seen: tuple[ProcessRef, ...] = ()
        for _ in range(_PASSES):
            refs = _descendants(list(stats(self.root)), pid)
            if refs == seen:
                break
            seen = refs
        found = (self.process(ref.pid) for ref in seen)
        known = set(seen)
        processes = tuple(one for one in found if one is not None and one.ref in known)
        if not processes or processes[0].pid != pid:
            raise NoSuchProcess(f"there is no process {pid}")
        return Tree(processes)

    def pids(self) -> tuple[int, ...]:
        """Return the pids of all processes there are."""
        return numbers(self.root)

    def process(self, pid: int) -> Process | None:
        """Return one process, None if there is none."""
        folder = f"{self.root}/{pid}"
        raw, status_raw = read(f"{folder}/stat"), read(f"{folder}/status")
        if not raw or not status_raw:
            return None
        found, status = parse_stat(raw), parse_status(status_raw)
        if found.pid != int(status.get("Tgid", found.pid)):
            return None  # /proc/TID can be opened too, and is no process
        return Process(
            ref=ProcessRef(found.pid, found.start_time),
            ppid=found.ppid,
            pgid=found.pgid,
            sid=found.sid,
            state=found.state,
            threads=numbers(f"{folder}/task") or (pid,),
            comm=found.comm,
            argv=_argv(read(f"{folder}/cmdline") or b""),
            exe=link(f"{folder}/exe") or "",
            cwd=link(f"{folder}/cwd") or "",
            uid=_first(status, "Uid"),
            gid=_first(status, "Gid"),
            rss=kibibytes(status, "VmRSS"),
            tty=found.tty,
            tracer=_first(status, "TracerPid"),
            kernel_thread=found.kernel_thread,
        )

    def cpu_times(self, pids: Iterable[int]) -> dict[int, int]:
        """Return the nanoseconds that each thread of some processes has run so far."""
        return {tid: ran for pid in pids for tid, ran in cpu_times(self.root, pid).items()}

    def alive(self, ref: ProcessRef) -> bool:
        """Whether this very process still exists, as more than a zombie, and is not being killed.

        With hundreds of gigabytes the kernel takes seconds from SIGKILL to the zombie.
        """
        found = self._stat(ref.pid)
        if found is None or found.start_time != ref.start_time:
            return False
        if (found.exiting and found.state not in "ZX") or self._killed(ref.pid):
            return False
        # the first thread may have ended while others run on
        return found.state not in "ZX" or len(numbers(f"{self.root}/{ref.pid}/task")) > 1

    def ancestors(self, pid: int) -> tuple[int, ...]:
        """Return the pids above `pid`, nearest first; the last one has no parent here."""
        above: list[int] = []
        found = self._stat(pid)
        while found is not None and found.ppid > 0 and found.ppid not in above:
            above.append(found.ppid)
            found = self._stat(found.ppid)
        return tuple(above)

    def devices(self, pids: Iterable[int]) -> tuple[DeviceUse, ...]:
        """Return every GPU-like device file the processes hold by descriptor or mapping.

        These are NVIDIA's nodes with their capability files, gdrcopy's and InfiniBand's.

        Raises:
            NotPrivileged: a process may not be looked into; an empty answer would be a lie.
        """
        return tuple(use for pid in pids for use in self._gpu_side(pid)[0])

    def inherited(self, pids: Iterable[int]) -> frozenset[DeviceUse]:
        """Return what of GPUs each of the processes has in common with another one of them."""
        return inherited(self.root, pids)

    def _gpu_side(self, pid: int) -> tuple[list[DeviceUse], bool]:
        """Return the devices of one process, and whether it maps libcuda."""
        folder = f"{self.root}/{pid}"
        try:
            held = [(fd, plain(target)[0]) for fd, target in targets(folder)]
            mapped = sorted({one.target for one in mappings(folder)})
        except PermissionError as why:
            if self._stat_state(pid) in "ZX":
                return [], False
            raise NotPrivileged(f"the open files of process {pid} may not be read") from why
        uses = [DeviceUse(pid, fd, path) for fd, path in held if _GPU_NODES.fullmatch(path)]
        uses += [DeviceUse(pid, None, path) for path in mapped if _GPU_NODES.fullmatch(path)]
        return uses, any(_LIBCUDA.search(path) for path in mapped)

    def look(self, tree: Tree) -> Look:
        """Return all that matters of a tree before a dump; see tools/look.py."""
        return look(self.root, tree, self.ancestors(tree.root.pid))

    def surroundings(self, pid: int) -> Surroundings:
        """Return what a process lives in that no image carries; see tools/surroundings.py."""
        return surroundings(self.root, pid)

    def fire(self, pid: int, fd: int) -> None:
        """Let a timer of a process expire at once; see tools/timers.py."""
        fire(pid, fd)

    def signs(self, pid: int) -> Signs | None:
        """Return a process's signs of life, None if it is gone."""
        return signs(self.root, pid)

    def copies(self, argv: tuple[str, ...], cwd: str, since: float) -> tuple[int, ...]:
        """Return processes with this command line and folder, started at `since` or later."""
        return tuple(copies(self.root, argv, cwd, since))

    def neglected(self, parent: int) -> frozenset[int]:
        """Return the zombies that a process has not waited for."""
        return neglected(self.root, parent)

    def cuda_candidates(self, pids: Iterable[int]) -> tuple[int, ...]:
        """Return those that hold a GPU device or map libcuda: worth asking the driver about.

        A process that is suspended already holds no device any more, but still its libcuda.

        Raises:
            NotPrivileged: as in `devices`.
        """
        return tuple(sorted({pid for pid in pids if any(self._gpu_side(pid))}))

    def taken(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return those of the numbers that cannot be given to a new task now, sorted.

        A number is taken by a process, a thread or a zombie, and also while it names the group or
        the session of a living process: CRIU's clone3 answers EEXIST for all of these.
        """
        wanted = set(ids)
        groups = {number for one in stats(self.root) for number in (one.pgid, one.sid)}
        used = {n for n in wanted if n in groups or (self.root / str(n)).exists()}
        return tuple(sorted(used))

    def owner(self, number: int) -> Process | None:
        """Return the process that uses a number: as its pid, a thread's, its group or session."""
        status = parse_status(read(self.root / str(number) / "status") or b"")
        if tgid := int(status.get("Tgid", "0")):
            return self.process(tgid)
        users = (one.pid for one in stats(self.root) if number in {one.pgid, one.sid})
        return self.process(next(users, 0))

    def adopt_orphans(self, *, on: bool) -> None:
        """Become, or stop being, the parent of whatever loses its own below this process.

        A restore that fails leaves tasks whose parent, CRIU, has died; on many hosts init reaps
        them seconds late, and their pids stay taken until then.
        """
        if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    def kill(self, ref: ProcessRef) -> None:
        """SIGKILL this very process; nothing if it is gone or the pid is another's now."""
        send(self.root, ref, signal.SIGKILL)

    def wake(self, ref: ProcessRef) -> None:
        """SIGCONT this very process; nothing if it is gone or the pid is another's now."""
        send(self.root, ref, signal.SIGCONT)

    def half_made(self, pid: int) -> bool:
        """Whether a process is still what CRIU works with in a restore; see tools/remains.py."""
        return half_made(self.root, pid)

    def users(self, paths: Collection[str]) -> dict[str, int]:
        """Return those of the files that a process has open or mapped under that name, and who."""
        return users(self.root, paths)

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a child of this process, whose pid cannot be another's before `reap`."""
        deliver(pid, signum)

    def reap(self, pids: Iterable[int]) -> dict[int, int]:
        """Wait, without blocking, for those of the pids that are dead children of this process.

        Only the given pids are waited for: the status of a program that somebody else started
        and waits for stays where it is.

        Returns:
            The exit status of each pid reaped now, negative for a signal.
        """
        ended: dict[int, int] = {}
        for pid in pids:
            with suppress(ChildProcessError):
                dead, status = os.waitpid(pid, os.WNOHANG)
                if dead:
                    ended[dead] = os.waitstatus_to_exitcode(status)
        return ended

    def _killed(self, pid: int) -> bool:
        status = parse_status(read(f"{self.root}/{pid}/status") or b"")
        pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
        return bool(pending & 1 << signal.SIGKILL - 1)

    def _stat(self, pid: int) -> Stat | None:
        raw = read(f"{self.root}/{pid}/stat")
        return parse_stat(raw) if raw else None

    def _stat_state(self, pid: int) -> str:
        found = self._stat(pid)
        return found.state if found else "X"


def _descendants(all_stats: list[Stat], root: int) -> tuple[ProcessRef, ...]:
    """Order a tree breadth first, siblings by pid; empty if the root is not there."""
    by_pid = {one.pid: one for one in all_stats}
    children: dict[int, list[int]] = {}
    for one in all_stats:
        children.setdefault(one.ppid, []).append(one.pid)
    order = [root] if root in by_pid else []
    for pid in order:  # grows while it is read
        order += children.get(pid, [])
    return tuple(ProcessRef(pid, by_pid[pid].start_time) for pid in order)


def _argv(cmdline: bytes) -> tuple[str, ...]:
    """Split a command line; one that was overwritten may end in many zero bytes."""
    stripped = cmdline.rstrip(b"\0")
    return tuple(text(part) for part in stripped.split(b"\0")) if stripped else ()


def _first(status: dict[str, str], name: str) -> int:
    parts = status.get(name, "").split()
    return int(parts[0]) if parts else 0
