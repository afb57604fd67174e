"""Processes, as the flow sees them: a part of the toolbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuckpt.model import (
        DeviceUse,
        Process,
        ProcessRef,
        Tree,
    )
    from gpuckpt.tools.look import Look
    from gpuckpt.tools.pidspace import Space
    from gpuckpt.tools.signs import Signs
    from gpuckpt.tools.surroundings import Surroundings


class ProcTool(Protocol):
    """/proc and signals: what the kernel says of processes."""

    def tree(self, pid: int) -> Tree:
        """Return the process and all its descendants; NoSuchProcess if it is gone."""

    def pids(self) -> tuple[int, ...]:
        """Return the pids of all processes there are."""

    def process(self, pid: int) -> Process | None:
        """Return one process, None if there is none."""

    def alive(self, ref: ProcessRef) -> bool:
        """Whether this very process still exists, as more than a zombie."""

    def cpu_times(self, pids: Iterable[int]) -> dict[int, int]:
        """Return the nanoseconds that each thread of some processes has run so far."""

    def ancestors(self, pid: int) -> tuple[int, ...]:
        """Return the pids above `pid`, nearest first."""

    def devices(self, pids: Iterable[int]) -> tuple[DeviceUse, ...]:
        """Return every GPU-like device file the processes hold by descriptor or mapping."""

    def inherited(self, pids: Iterable[int]) -> frozenset[DeviceUse]:
        """Return what of GPUs each of the processes has in common with another one of them."""

    def look(self, tree: Tree) -> Look:
        """Return all that matters of a tree before a dump, read only."""

    def surroundings(self, pid: int) -> Surroundings:
        """Return what a process lives in that no image carries."""

    def fire(self, pid: int, fd: int) -> None:
        """Let a timer of a process expire at once; OSError if it cannot be reached."""

    def signs(self, pid: int) -> Signs | None:
        """Return a process's signs of life, None if it is gone."""

    def copies(self, argv: tuple[str, ...], cwd: str, since: float) -> tuple[int, ...]:
        """Return processes with this command line and folder, started at `since` or later."""

    def neglected(self, parent: int) -> frozenset[int]:
        """Return the zombies that a process has not waited for."""

    def cuda_candidates(self, pids: Iterable[int]) -> tuple[int, ...]:
        """Return those processes that are worth asking the driver about."""

    def taken(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return those of the numbers that a task, thread or zombie uses now."""

    def owner(self, number: int) -> Process | None:
        """Return the process that uses a number: as its pid, a thread's, its group or session."""

    def adopt_orphans(self, *, on: bool) -> None:
        """Become, or stop being, the parent of whatever loses its own below this process."""

    def kill(self, ref: ProcessRef) -> None:
        """SIGKILL this very process; nothing if it is gone or the pid is another's now."""

    def wake(self, ref: ProcessRef) -> None:
        """SIGCONT this very process; nothing if it is gone or the pid is another's now."""

    def half_made(self, pid: int) -> bool:
        """Whether a process is still what CRIU works with in a restore, and not yet its own."""

    def users(self, paths: Collection[str]) -> dict[str, int]:
        """Return those of the files that a process has open or mapped under that name, and who."""

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a child of this process; nothing if it has ended."""

    def reap(self, pids: Iterable[int]) -> dict[int, int]:
        """Wait, without blocking, for those pids that are dead children of this process.

        Returns the exit status of each reaped now, negative for a signal. Other children are left
        alone: whoever started them waits for them.
        """


class SpacesTool(Protocol):
    """Pid namespaces that gpuckpt has made for jobs; see gpuckpt.tools.pidspace."""

    def of(self, pid: int) -> Space | None:
        """Return the one that a process lives in, None if it is in no other than this process."""

    def numbers(self, space: Space) -> dict[int, int]:
        """Return what each number of this host is in there: pids, threads, groups, sessions."""

    def number(self, space: Space) -> int:
        """Return the number of the namespace itself, 0 if it is gone."""
