"""One tree in the hands of one operation: its GPU state taken away and given back.

Owns what dump and rehearsal do alike: the journal entry, the way back from every step, and the
looks at the tree that tell whether it is still the one that was looked at.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import (
    DumpFailed,
    GpuckptError,
    NoSuchProcess,
    ProcessLost,
    QuiesceFailed,
    UndoIncomplete,
)
from gpuckpt.flow.gpu.condition import conditions
from gpuckpt.flow.gpu.devices import check_leftovers
from gpuckpt.flow.gpu.tree import CudaTree
from gpuckpt.flow.sight.look import look
from gpuckpt.flow.taking.linked import linked
from gpuckpt.flow.work import hugepages, spans
from gpuckpt.flow.work.journal import noun
from gpuckpt.flow.work.quiescing import agree, go_on, rest, still_quiet
from gpuckpt.flow.work.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.model import DeviceUse, Finding, Process, Tree


class Taking:
    """A tree that is worked on.

    `sight` is what is known of it by now, `findings` what the result has to tell. `quiesced` are
    the processes that were asked to let go at a step, `unmoved` tells which of them did not go on
    when they were told to. `abandoned` says what is left of an image where it cannot be reached.
    """

    def __init__(self, operation: Operation, sight: Sight, image: str = "") -> None:
        """Write the journal entry; nothing else is touched yet."""
        self.sight = sight
        self.cuda = CudaTree(
            operation.tools, operation.interrupts, sight.cuda, note=operation.record.reporter.note
        )
        self.cuda.part = operation.record.part
        self.undo = Undo()
        self.findings = [one for one in sight.findings if not one.blocks]
        self._inherited: frozenset[DeviceUse] = frozenset()
        self.quiesced: tuple[int, ...] = ()
        self.unmoved: list[Finding] = []
        self._operation = operation
        self._tools = operation.tools
        self._record = operation.record
        self.abandoned = ""
        self._lost: list[int] = []
        self._away = False
        refs, names = [p.ref for p in sight.tree.processes], linked(self._tools, sight)
        self.entry = operation.enter(sight.tree.root.pid, image, refs, sight.cuda, names)
        operation.interrupts.left = self.undo.left

    def numbers(self) -> dict[int, int]:
        """Return the numbers that CRIU knows the job by, where these are others than ours."""
        space = self.sight.space
        return self._tools.spaces.numbers(space) if space is not None else {}

    def note(self, step: str, **known: object) -> None:
        """Write down what is about to be done, and what has become known."""
        self.entry = self._operation.journal.step(self.entry, step, **known)

    def open(self) -> None:
        """Get the driver's helpers ready."""
        self.undo.add("driver helpers are left", self._tools.cuda.close)
        self.cuda.open()

    def come_to_rest(self, request: DumpRequest, *, image: bool = True) -> Sight:
        """Bring a job that cooperates to rest at a step, if asked for; return what is dumped then.

        Raises:
            QuiesceFailed: it did not come to rest, or cannot be dumped all the same.
        """
        if request.quiesce:
            self._quiesce(request.quiesce_timeout)
            self.sight = self._look_again(request, image=image)
            self.findings[:] = [one for one in self.sight.findings if not one.blocks]
        return self.sight

    def _quiesce(self, timeout: float) -> None:
        pids = self.sight.facts.cooperating
        self.note("quiesce", quiesced=True)
        self.quiesced = pids
        with self._record.phase("quiesce", _ranks(pids)) as step:
            self.undo.add("processes stand at a step", self._must_go_on)
            at = agree(self._tools, self._operation.interrupts, pids, timeout)
            self._record.event(spans.AT_REST)
            step.say(f"{_ranks(pids)} at step {at}")
            rest(self._tools, self._operation.interrupts, pids, at, timeout)

    def _look_again(self, request: DumpRequest, *, image: bool) -> Sight:
        """Only now the job is as it will be dumped."""
        with self._record.phase("look again", f"process {request.pid} at rest"):
            same = replace(request, output=self.sight.output)
            sight = look(self._tools, same, image=image, quiesced=True)
            if sight.error is not None:
                raise QuiesceFailed(
                    f"even at rest {sight.error}".replace("nothing was touched", "it goes on"),
                    findings=sight.findings,
                    hint="What is named must be let go of in `down`.",
                )
            still_quiet(self._tools, self.quiesced)
            self.relist()
            refs = tuple(process.ref for process in sight.tree.processes)
            self.note("quiet", processes=refs, linked=linked(self._tools, sight))
        return sight

    def release_huge_pages(self) -> tuple[Finding, ...]:
        """Put the setting back when it has served; return what is to be told if it cannot be."""
        return hugepages.end(self._operation, self)

    def take_gpu(
        self,
        lock_timeout: float,
        *,
        thp: bool = False,
        locked: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        """Lock all, checkpoint all, and look that no GPU device is left open.

        `thp`: the driver's host buffers shall be huge pages. `locked` is told of the CUDA processes
        in between.
        """
        if thp:
            hugepages.begin(self._operation, self, self.undo, gpu=bool(self.cuda.pids))
        self.undo.add("the job does not run", self._check_running)
        self.undo.add("GPU state is not back", self._bring_back)
        self._record.event(spans.LOCK)
        with self._record.phase("lock", _pids(self.cuda.pids)) as step:
            self.note("lock")
            rounds = step.rounds = self.cuda.lock(lock_timeout, self.relist, self._joined)
            step.say(f"{_pids(self.cuda.pids)}, {rounds} round{'s' * (rounds > 1)}")
        if self.cuda.pids:
            locked(self.cuda.pids)
            with self._record.phase("gpu-out", "GPU memory to host memory") as step:
                tree = self.relist()
                self._joined(tree, "checkpoint", uses=self.cuda.measure())
                # after the checkpoint nobody can tell any more whose it was
                self._inherited = self._tools.proc.inherited(tree.pids)
                self.cuda.checkpoint()
                step.advance(self.cuda.bytes)
        options = replace(self.sight.options, stand_ins=self.check_devices() or None)
        self.sight = replace(self.sight, options=options)

    def turn_gpu(self) -> None:
        """Give the GPU memory back and take it again; no process may go on in between."""
        with self._record.phase("gpu-turn", "to the GPU and back to host memory") as step:
            self.cuda.turn()
            step.advance(2 * self.cuda.bytes)

    def check_devices(self) -> frozenset[int]:
        """Look that no GPU device is left open, and return the numbers of those that may be.

        Raises:
            GpuLeftover: one is left open that may not be.
        """
        pids = self.relist().pids
        return check_leftovers(self._tools, pids, self.cuda.first, self._inherited)

    def give_back(self) -> None:
        """Let every process go on as before; there is no stopping in the middle of it."""
        if self.cuda.pids:
            with self._record.phase("gpu-in", "GPU memory back", stoppable=False) as step:
                self._bring_back()
                step.advance(self.cuda.bytes)
            self._record.event(spans.UNLOCKED)
        if self.quiesced:
            with self._record.phase("resume", _ranks(self.quiesced), stoppable=False):
                self.unmoved = go_on(self._tools, self.quiesced)
            self._record.event(spans.RESUMED)

    def _must_go_on(self) -> None:
        if found := go_on(self._tools, self.quiesced):
            raise QuiesceFailed(found[0].reason.rstrip("."), hint=found[0].remedy)

    def relist(self) -> Tree:
        """List the tree again: its root, CUDA processes and ranks must be those looked at."""
        tree = self._tools.proc.tree(self.sight.tree.root.pid)
        now = {process.pid: process.ref for process in tree.processes}
        for seen in self.sight.tree.processes:
            if self._essential(seen) and now.get(seen.pid) != seen.ref:
                raise self._loss([seen.pid])
        return tree

    def put_back(self, why: BaseException) -> None:
        """Undo everything and forget the operation; what could not be undone is kept in mind."""
        if self.undo:
            self._record.reporter.warn(f"{why}; putting everything back")
        try:
            self.undo.run(why)
        except UndoIncomplete as left:
            self._tell_conditions(left)
            raise
        if not self.abandoned:
            self._operation.journal.close(self.entry)
        elif isinstance(why, GpuckptError):
            why.add(f"{self.abandoned}: `gpuckpt repair` removes it")
        if self._lost and not isinstance(why, ProcessLost | NoSuchProcess):
            lost = self._loss(self._lost, why)
            self._tell_conditions(lost)
            raise lost from why
        self._tell_conditions(why)

    def _loss(self, pids: list[int], why: BaseException | None = None) -> ProcessLost:
        """Return the error for processes that nobody can bring back, and what came of it."""
        names, work = ", ".join(map(str, pids)), noun(self._operation.verb)
        known = why if isinstance(why, GpuckptError) else None
        return ProcessLost(
            f"process {names} ended while a {work} was at work on it" + f": {why}" * bool(why),
            log=known.log if known else None,
            excerpt=known.excerpt if known else (),
        )

    def _tell_conditions(self, why: BaseException) -> None:
        """Say of every process how it is now, if any is not as it had been."""
        if isinstance(why, GpuckptError):
            with suppress(OSError):
                why.processes = conditions(self._tools, self.sight.tree, self.cuda.first)
            with suppress(OSError):
                self._tools.cuda.close()

    def let_go(self) -> None:
        """Nothing is left to be undone: release the driver's helpers, forget the operation."""
        self.findings += self.release_huge_pages()
        self._tools.cuda.close()
        self.undo.keep()
        hugepages.close(self._operation, self.entry)

    def _joined(self, tree: Tree, step: str = "lock", **known: object) -> None:
        """Write down who is in the tree now: what a repair does not know it leaves locked."""
        refs = tuple(process.ref for process in tree.processes)
        first, threads = self.cuda.first, self.cuda.threads
        self.note(step, processes=refs, first=first, threads=threads, **known)

    def _bring_back(self) -> None:
        self._away = True
        self.cuda.bring_back()
        self._away = False

    def _check_running(self) -> None:
        """After a failure the job must be there, and nothing of it stopped.

        A plain child may have come to its end meanwhile, as it would have without us. A process
        whose GPU state is not back is stopped for good reason, and that is told already.
        """
        for process in self.sight.tree.processes:
            now = self._tools.proc.process(process.pid)
            if now is None or now.ref != process.ref or now.zombie:
                if self._essential(process):
                    self._lost.append(process.pid)
            elif self._away and process.pid in self.cuda.first:
                continue
            elif now.stopped and not process.stopped:
                raise DumpFailed(f"process {process.pid} is stopped")

    def _essential(self, process: Process) -> bool:
        """Whether the job is none without it; a rank at rest is missed by the others."""
        known = process.pid in self.cuda.first or process.pid in self.quiesced
        return known or process is self.sight.tree.root


def _ranks(pids: tuple[int, ...]) -> str:
    return f"{len(pids)} process{'es' * (len(pids) > 1)}"


def _pids(pids: list[int]) -> str:
    """Name a few processes, count many."""
    if not pids:
        return "no CUDA process"
    if len(pids) <= 3:  # noqa: PLR2004 - as many as fit beside a step's name
        return "process " + ", ".join(map(str, pids))
    return f"{len(pids)} CUDA processes"
