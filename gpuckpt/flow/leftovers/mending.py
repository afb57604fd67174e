"""Putting right what one operation that was cut short has left, step by step.

Every step looks first and may be run again. What could not be done is collected, not raised: the
other steps must still be tried.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.gpu.tree import CudaTree
from gpuckpt.flow.leftovers.found import (
    committed,
    criu_of,
    files_of,
    left_of,
    living,
    made_tasks,
    parked,
    quiet_of,
    same_boot,
    stands,
)
from gpuckpt.flow.leftovers.recover import tidy
from gpuckpt.flow.leftovers.sent import in_store
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.quiescing import go_on
from gpuckpt.flow.work.tasks import end_restored
from gpuckpt.flow.work.workspace import folder_of
from gpuckpt.model import CudaState, blocker
from gpuckpt.tools.criu import DUMP_LOG
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.journal import Entry, Journal
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding

# a CRIU whose gpuckpt has died fails by its broken stream, and cures the tasks before it ends
CRIU_SECONDS = 20.0
POLL_SECONDS = 0.1


# what is not removed, but put back
_BACK = {"left-aside": "it was put back: {}", "left-cut": "it has its later bytes again: {}"}


class Deed(Value, frozen=True):
    """One thing that was put right, or would be."""

    text: str
    pid: int | None = None


class Mender:
    """Puts right what one entry tells of."""

    def __init__(
        self, tools: Toolbox, journal: Journal, interrupts: Interrupts, entry: Entry
    ) -> None:
        """Touch nothing yet."""
        self.tools = tools
        self.journal = journal
        self.interrupts = interrupts
        self.entry = entry
        self.deeds: list[Deed] = []
        self.failed: list[Finding] = []
        self.back: set[int] = set()

    def mend(self) -> None:
        """Do all that can be done; the entry goes only if nothing is left.

        Raises:
            Interrupted: a signal came between two steps; the entry stays.
        """
        if same_boot(self.tools, self.entry):
            self._try("CRIU is still at work", self._end_criu)
            if self.entry.operation == "restore":
                self._try("half-restored tasks are left", self._end_tasks)
            else:
                self._try("GPU state is not back", self._bring_back)
                self._try("a stopped process is left", self._wake)
                self._try("TCP connections are cut", self._free_connections)
            self._try("processes stand at a step", self._let_go_on)
            self._try(hugepages.LEFT, self._huge_pages)
        if not any(one.blocks for one in (*self.failed, *left_of(self.tools, self.entry))):
            self._try("files are left", self._tidy)

    def _try(self, what: str, step: Callable[[], None]) -> None:
        self.interrupts.check()
        try:
            step()
        except (GpuckptError, OSError) as why:
            hint = getattr(why, "hint", "") or "Run `gpuckpt repair` again when the cause is gone."
            pids = [ref.pid for ref in living(self.tools, self.entry)]
            reason = f"{what[0].upper()}{what[1:]}: {why}".rstrip(".") + "."
            self.failed.append(
                blocker("not-repaired", self.entry.title, reason, hint, pids[0] if pids else None)
            )

    def _end_criu(self) -> None:
        """Wait for the CRIU of this run to end by itself, then end it."""
        ends = time.monotonic() + CRIU_SECONDS
        while (criu := criu_of(self.tools, self.entry)) is not None and not criu.zombie:
            if time.monotonic() >= ends:
                self.tools.proc.kill(criu.ref)
                self.deeds.append(Deed("the CRIU of the earlier run was ended", criu.pid))
                ends = time.monotonic() + CRIU_SECONDS
            self.interrupts.check()
            time.sleep(POLL_SECONDS)

    def _bring_back(self) -> None:
        """Lead every CUDA process back to the state it was in first."""
        alive = {ref.pid for ref in living(self.tools, self.entry)}
        first = {pid: state for pid, state in self.entry.first.items() if pid in alive}
        if not first:
            return
        before = {one.pid for one in left_of(self.tools, self.entry) if one.blocks and one.pid}
        try:
            cuda = CudaTree(self.tools, self.interrupts, first, self.entry.threads)
            cuda.expect(self.entry.uses)
            cuda.open()
            cuda.bring_back()
        finally:
            self.tools.cuda.close()
        self.back = set(first)
        for pid in sorted(first.keys() & before):
            self.deeds.append(Deed(f"its CUDA state is {first[pid]} again", pid))

    def _wake(self) -> None:
        """Let go on what only the journal knows to be stopped by us.

        Never before its GPU state is back: its next CUDA call could crash it.
        """
        for ref in living(self.tools, self.entry):
            process = self.tools.proc.process(ref.pid)
            if process is None or ref.pid not in self.back:
                continue
            if parked(process, self.entry):
                self.tools.proc.wake(ref)
                self.deeds.append(Deed("it was stopped and goes on", ref.pid))

    def _free_connections(self) -> None:
        """If CRIU was killed as well, the job runs with its TCP connections cut."""
        alive = [ref.pid for ref in living(self.tools, self.entry)]
        if not alive:
            return
        log = folder_of(self.tools.state_dir, self.entry.id) / DUMP_LOG
        things = self.tools.net.cut(alive, log)
        self.tools.net.free_connections(alive, log)
        self.deeds += (Deed(f"{thing}: put back") for thing in things)

    def _let_go_on(self) -> None:
        """Those that were at rest go on; never before they have their GPU state."""
        found = quiet_of(self.tools, self.entry)
        if not found or self.failed:
            return
        # all of them, for they have to go on together
        pids = [ref.pid for ref in living(self.tools, self.entry)]
        self.failed += go_on(self.tools, pids)
        stuck = {one.pid for one in self.failed}
        self.deeds += (
            Deed(f"it stood at step {one.step} and goes on", one.pid)
            for one in found
            if one.pid not in stuck
        )

    def _end_tasks(self) -> None:
        """End the tasks of a restore that was never finished, unless the whole job runs."""
        entry = self.entry
        if stands(self.tools, entry):
            self.deeds.append(
                Deed("the restored job runs, and was never verified", entry.processes[0].pid)
            )
            return
        tasks = made_tasks(self.tools, entry)
        if not tasks:
            return
        refs = [task.ref for task in tasks]
        cuda = [ref.pid for ref in refs if ref.pid in entry.first]
        try:
            self._open(cuda)
            end_restored(self.tools, refs, cuda)
        finally:
            self.tools.cuda.close()
        self.deeds += (Deed("a half-restored task was ended", ref.pid) for ref in refs)

    def _open(self, cuda: list[int]) -> None:
        """Get ready to suspend what is to be ended; if that cannot be, it ends all the same."""
        away = dict.fromkeys(cuda, CudaState.CHECKPOINTED)
        threads = {pid: tid for pid, tid in self.entry.threads.items() if pid in away}
        try:
            CudaTree(self.tools, self.interrupts, away, threads).open()
        except GpuckptError:
            return

    def _huge_pages(self) -> None:
        """Put the host's setting back, whatever else is left."""
        if any(hugepages.left(self.tools, self.journal, self.entry)):
            self.deeds.append(Deed(f"{hugepages.FILE} is {self.entry.huge_pages} again"))
        self.entry = hugepages.give_back(self.tools, self.journal, self.entry)

    def _tidy(self) -> None:
        if committed(self.tools, self.entry) and living(self.tools, self.entry):
            self.deeds.append(Deed(f"the image {self.entry.image} is whole and was kept"))
        left = left_of(self.tools, self.entry)
        if (files := files_of(self.tools, self.entry)).job_stands:
            self.deeds += (Deed(f"kept for you: {path}") for path in files.kept)
        tidy(self.tools, self.journal, self.entry)
        self.deeds += (Deed(_done(one)) for one in left if one.id.startswith("left-"))
        if not in_store(self.entry) and self.entry.stage and Path(self.entry.stage).exists():
            raise OSError(f"{self.entry.stage} could not be removed")


def _done(one: Finding) -> str:
    return _BACK.get(one.id, "removed {}").format(one.object)
