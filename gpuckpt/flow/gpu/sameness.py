"""Whether a job that was suspended in place came back as it was: seen before, seen afterwards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.gpu.memory import shrunk
from gpuckpt.flow.gpu.tree import states_of
from gpuckpt.model import CudaState, blocker, warning
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding, GpuUse, Process

# how long a job is watched before, and how long it may take to do a little of that again: the
# driver's own threads run now and then, so a job that hangs does not stand quite still
WATCH_SECONDS = 0.5
PROGRESS_SECONDS = 10.0
PROGRESS_PART = 0.1
POLL_SECONDS = 0.05
REMEDY = "Look at the job's own output; do not rely on dumps of this kind of job."


class Seen(Value, frozen=True):
    """A tree at one moment."""

    processes: tuple[Process, ...]
    states: Mapping[int, CudaState]
    uses: tuple[GpuUse, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of all processes."""
        return tuple(process.pid for process in self.processes)

    @property
    def gpu_bytes(self) -> int:
        """What they hold on all GPUs together."""
        return sum(use.bytes for use in self.uses)


class Watch:
    """One job under observation, from before to after."""

    def __init__(self, tools: Toolbox, pid: int, interrupts: Interrupts) -> None:
        """Look at the job for a moment, to know what it does when nobody disturbs it."""
        self._tools = tools
        self._interrupts = interrupts
        self.before = see(tools, pid)
        self._ran = self._runs(self.before.pids, WATCH_SECONDS)
        self.moves = False

    @property
    def moved(self) -> bool:
        """Whether the job used the CPU when nobody disturbed it."""
        return self._ran > 0

    def afterwards(self, settle: float) -> list[Finding]:
        """Watch the job for `settle` seconds and return what is not as it was, the worst first.

        A job that used the CPU before has to do so again, for which it gets longer if need be.
        """
        goal = max(1, int(self._ran * PROGRESS_PART))
        ran = self._runs(self.before.pids, settle)
        if self.moved and ran < goal:
            ran += self._runs(self.before.pids, PROGRESS_SECONDS, goal - ran)
        self.moves = ran >= goal
        now = see(self._tools, self.before.pids[0])
        found = [*_gone(self.before, now), *_gpu(self.before, now), *_threads(self.before, now)]
        if self.moved and not self.moves:
            found.append(_stands_still(now))
        return sorted(found, key=lambda one: not one.blocks)

    def _runs(self, pids: tuple[int, ...], seconds: float, enough: int | None = None) -> int:
        """Return how long the job runs on CPUs in so many seconds, in ns; less if `enough`."""
        since = self._tools.proc.cpu_times(pids)
        ends = time.monotonic() + seconds
        while True:
            now = self._tools.proc.cpu_times(pids)
            ran = sum(max(0, time_ - since.get(tid, 0)) for tid, time_ in now.items())
            if time.monotonic() >= ends or (enough is not None and ran >= enough):
                return ran
            self._interrupts.check()
            time.sleep(POLL_SECONDS)


def see(tools: Toolbox, pid: int) -> Seen:
    """Look at a tree as it is now; a root that is gone gives no processes."""
    try:
        processes = tools.proc.tree(pid).processes
    except GpuckptError:
        return Seen((), {}, ())
    states = states_of(tools, [process.pid for process in processes])
    return Seen(processes, states, tools.nvidia.uses(sorted(states)) if states else ())


def _gone(before: Seen, now: Seen) -> Iterator[Finding]:
    """A plain child may have come to its end meanwhile, as it would have without us."""
    present = {process.ref: process for process in now.processes}
    for process in before.processes:
        pid, found = process.pid, present.get(process.ref)
        if found is None or found.zombie:
            if pid in before.states or process is before.processes[0]:
                yield _wrong("process-ended", f"Process {pid} ({process.command}) has ended.", pid)
        elif found.stopped and not process.stopped:
            yield _wrong("process-stopped", f"Process {pid} is stopped.", pid)


def _gpu(before: Seen, now: Seen) -> Iterator[Finding]:
    alive = {process.ref.pid for process in now.processes if not process.zombie}
    for pid, state in before.states.items():
        found = now.states.get(pid, CudaState.NONE)
        if pid in alive and found is not state:
            yield _wrong("gpu-state", f"Process {pid} was {state} and is {found} now.", pid)
        if reason := shrunk(before.uses, now.uses, pid):
            yield _wrong("gpu-memory-lost", reason, pid)


def _threads(before: Seen, now: Seen) -> Iterator[Finding]:
    """Threads come and go in a job that runs, so this is only told."""
    present = {process.ref: process for process in now.processes}
    for process in before.processes:
        found = present.get(process.ref)
        lost = set(process.threads) - set(found.threads) if found is not None else set()
        if lost:
            yield warning(
                "threads-ended",
                f"pid {process.pid}",
                f"Of {len(process.threads)} threads of process {process.pid}, "
                f"{len(lost)} have ended since.",
                "Threads that are no longer needed end in many jobs; look whether these were.",
                process.pid,
            )


def _stands_still(now: Seen) -> Finding:
    pid = now.processes[0].pid if now.processes else None
    reason = f"The job used the CPU before and has not done so for {PROGRESS_SECONDS:g} s since."
    return _wrong("no-progress", reason, pid)


def _wrong(id_: str, reason: str, pid: int | None) -> Finding:
    return blocker(id_, f"pid {pid}", reason, REMEDY, pid)
