"""dump: take a running tree off this host into an image, or leave everything as it was.

The order of things is the design: everything that can be refused is refused before anything is
touched; every step has its way back before it is tried; and the image becomes visible by one
rename, made while the tree is still frozen and can still go on, or when it runs again and all that
an image needs of it is ours.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import DumpFailed, Stopped, UndoIncomplete, WriteFailed
from gpuckpt.flow.request import DumpRequest, DumpResult
from gpuckpt.flow.sight.spooling import spool
from gpuckpt.flow.taking.aftermath import late_failure, left_behind, unlock
from gpuckpt.flow.taking.commit import Commit
from gpuckpt.flow.taking.first import first_look
from gpuckpt.flow.taking.hands import Taking
from gpuckpt.flow.taking.keeping import Streaming, Told
from gpuckpt.flow.taking.parting import part
from gpuckpt.flow.taking.references import References
from gpuckpt.flow.taking.software import Software
from gpuckpt.flow.taking.staging import begin, remove
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.tasks import wait_gone
from gpuckpt.flow.work.turn import turn
from gpuckpt.flow.work.undo import raising
from gpuckpt.flow.work.waiting import Tally
from gpuckpt.flow.work.workspace import workspace
from gpuckpt.tools import criustats
from gpuckpt.tools.criu import DUMP_LOG
from gpuckpt.tools.criunames import seen
from gpuckpt.tools.criurun import DumpRun, deadline

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.events import Reporter
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.receipt import CountedStep
    from gpuckpt.flow.work.toolbox import Toolbox

# how long the kernel, and parents that wait for their children, may take to clear the pids
GONE_SECONDS = 15.0


def dump(
    tools: Toolbox, request: DumpRequest, reporter: Reporter, interrupts: Interrupts
) -> DumpResult:
    """Dump a tree; on any failure before the commit it runs on as it was.

    Raises:
        HostUnfit, ProcessUnfit: refused; nothing was touched.
        GpuStepFailed, DumpFailed, Interrupted: failed, and everything was put back.
        UndoIncomplete: something could not be put back; the journal keeps what it was.
    """
    operation = Operation.begin("dump", tools, reporter, interrupts)
    with operation.record.phase("look", f"process {request.pid}"):
        sight = first_look(operation, request)
    if sight.kept:
        reporter.note(sight.kept)
    with turn(operation, needed=sight.options.link_remap) as waited:
        if waited:  # another job's dump may have taken an hour
            with operation.record.phase("look again", f"process {request.pid}"):
                sight = first_look(operation, replace(request, output=sight.output))
        job = _Dump(operation, request, sight)
        with job.told.kept():
            return job.run()


class _Dump:
    """One dump: what its steps share."""

    def __init__(self, operation: Operation, request: DumpRequest, sight: Sight) -> None:
        self.operation = operation
        self.tools = operation.tools
        self.record = operation.record
        self.interrupts = operation.interrupts
        self.request = request
        self.taking = Taking(operation, sight, str(sight.output))
        self.cuda = self.taking.cuda
        self.undo = self.taking.undo
        self.findings = self.taking.findings
        self.software = Software(operation, request)
        self.told = Told(operation, self.taking, stays=bool(request.leave_running))
        self.references = References(operation.tools, full=request.files.full)

    @property
    def sight(self) -> Sight:
        return self.taking.sight

    def run(self) -> DumpResult:
        commit: Commit | None = None
        try:
            with self.record.phase("inputs", "what stays where it is") as step:
                self.software.look(self.sight)
                self._read(step)
            self.taking.come_to_rest(self.request)
            self.told.expect()
            commit = self._stage()
            if self.request.leave_running:
                commit.spool(spool(self.sight.facts))
            self._take_gpu()
            self._stream(commit)
        except BaseException as why:
            if commit is not None:
                commit.abort()
            self.taking.put_back(why)
            raise
        self._finish(commit)
        return self._result(commit)

    def _read(self, step: CountedStep) -> None:
        """Read what stays outside while the job runs: none of that need lengthen its pause."""

        def on_bytes(count: int) -> None:
            step.advance(count)
            self.interrupts.check()

        self.references.read(self.sight.facts.along.kept, self.software.digests, on_bytes)

    def _stage(self) -> Commit:
        with self.record.phase("prepare", str(self.sight.output)):
            stage = begin(self.tools, self.taking, self.sight.output)
            self.taking.open()
        return Commit(
            self.operation,
            self.request,
            self.taking,
            stage,
            software=self.software,
            references=self.references,
        )

    def _take_gpu(self) -> None:
        if not self.cuda.pids:
            self.record.reporter.note("no process of the tree uses CUDA: CRIU alone is enough")
        self.taking.take_gpu(self.request.lock_timeout, thp=self.request.thp)

    def _stream(self, commit: Commit) -> None:
        """Run CRIU; its hook makes the commit while the tree is frozen."""
        sight, record = self.sight, self.record
        size = sum(process.rss for process in sight.tree.processes) + self.cuda.bytes
        self.interrupts.check()
        stages = commit.step = Streaming(record, size)
        with workspace(self.tools.state_dir, self.taking.entry.id) as work, stages:
            self.taking.note("stream")
            numbers = self.taking.numbers()
            root = numbers.get(self.request.pid, self.request.pid)
            tally = commit.tally = Tally(commit.packer.waits)

            def verdict() -> None:
                tally.tell(stages.step)
                stages.end()
                commit.decide()
                stages.begin("end", "CRIU")

            run = DumpRun(
                pid=root,
                work=work,
                store=stages.watched(commit.packer.store, tally.skip),
                abort=commit.packer.abort,
                commit=verdict,
                options=self.sight.options,
                leave_running=self.request.leave_running,
                stop_fd=self.interrupts.fd,
                deadline=deadline(size),
                names=lambda: seen(sight.facts.look, numbers),
                place=self.sight.space,
            )
            stages.begin("freeze", "CRIU")
            try:
                self.tools.criu.dump(run)
            except BaseException as why:  # noqa: BLE001 - raised again below, judged first
                self._after_failure(commit, why, work / DUMP_LOG)
            if self.request.leave_running:
                record.event(spans.LET_GO)
            record.told(*criustats.read(work, criustats.DUMP))
            if commit.manifest is not None and not self.request.leave_running:
                self.findings += unlock(self.tools, commit.manifest, work / DUMP_LOG)

    def _after_failure(self, commit: Commit, why: BaseException, log: Path) -> None:
        """CRIU failed. If the image stands and the tree is gone, all is well nevertheless."""
        if not commit.decided or not isinstance(why, Exception):
            commit.abort()
            self._free_connections(log)
            if isinstance(why, Stopped | WriteFailed):  # writing is what a signal cuts short
                self.interrupts.check()
            raise why
        living = [p for p in commit.tree.processes if not p.zombie]
        alive = [p for p in living if self.tools.proc.alive(p.ref)]
        if len(alive) == len(living):
            commit.take_back()
            self._free_connections(log)
            raise why
        if alive or self.request.leave_running:
            self.undo.keep()
            raise self._broken(commit, [process.pid for process in alive], why) from why
        self.findings.append(late_failure(why))

    def _broken(self, commit: Commit, alive: list[int], why: Exception) -> UndoIncomplete:
        """Return what to say of a job that CRIU has left in pieces; its image is worth most now."""
        left = f"process {', '.join(map(str, alive))}" if alive else "no process of the job"
        told = f"CRIU failed after it had handed everything over, and left {left}: {why}"
        hint = f"The image {self.sight.output} is whole: end what is left, then restore it."
        try:
            commit.complete(stoppable=False)
        except Exception as failed:  # noqa: BLE001 - then both are lost, and both are told of
            commit.abort()
            with suppress(WriteFailed):
                remove(self.taking, commit.stage)
            told, hint = f"{told}; and the image was not made: {failed}", ""
        return UndoIncomplete(told, hint=hint, log=getattr(why, "log", None))

    def _free_connections(self, log: Path) -> None:
        """A CRIU that was killed leaves TCP connections cut; here its log is still at hand."""
        try:
            self.tools.net.free_connections(self.sight.tree.pids, log)
        except OSError as why:
            self.undo.add("TCP connections are cut", raising(why))

    def _finish(self, commit: Commit) -> None:
        """CRIU is done: let the job go on and finish its image, or see that it is gone."""
        self.undo.keep()
        if self.request.leave_running:
            part(self.operation, self.taking, commit)
        else:
            try:
                self._see_gone(commit)
            finally:
                self.taking.release_huge_pages()
            self.taking.let_go()
        commit.stage.close()

    def _see_gone(self, commit: Commit) -> None:
        # a job forks and waits while it is looked at: those count that were frozen with it
        with self.record.phase("gone", "waiting for every pid", stoppable=False):
            left = wait_gone(self.tools, [one.ref for one in commit.tree.processes], GONE_SECONDS)
        if not left:
            self.record.event(spans.GONE)
        self.findings += [left_behind(process) for process in left]

    def _result(self, commit: Commit) -> DumpResult:
        if commit.manifest is None:
            raise DumpFailed("the dump ended without an image")
        receipt, self.told.manifest = self.record.receipt(), commit.manifest
        return DumpResult(
            image=self.sight.output,
            manifest=commit.manifest,
            receipt=receipt,
            findings=tuple(self.findings),
            pause=receipt.interval("pause") or 0.0,
            running=bool(self.request.leave_running),
            expected=self.told.expected,
        )
