"""dump: take a running tree off this host into an image, or leave everything as it was.

The order of things is the design: everything that can be refused is refused before anything is
touched; every step has its way back before it is tried; and the image becomes visible by one
rename, made while the tree is still frozen and can still go on.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpuckpt.errors import (
    DumpFailed,
    GpuckptError,
    NoSuchProcess,
    ProcessChanged,
    Stopped,
    UndoIncomplete,
    WriteFailed,
)
from gpuckpt.flow import records
from gpuckpt.flow.aftermath import late_failure, left_behind
from gpuckpt.flow.gpu import CudaTree
from gpuckpt.flow.look import Sight, look
from gpuckpt.flow.operation import Operation
from gpuckpt.flow.recover import recover
from gpuckpt.flow.request import DumpRequest, DumpResult
from gpuckpt.flow.tasks import wait_gone
from gpuckpt.flow.undo import Undo, raising
from gpuckpt.flow.workspace import workspace
from gpuckpt.image.pack import Packer
from gpuckpt.image.reread import reread
from gpuckpt.image.stage import Stage
from gpuckpt.tools.criu import DUMP_LOG, DumpRun, deadline

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.events import Reporter
    from gpuckpt.flow.interrupts import Interrupts
    from gpuckpt.flow.toolbox import Toolbox
    from gpuckpt.image.manifest import FileEntry, Manifest
    from gpuckpt.model import Process, Tree

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
        recover(operation)
        sight = look(tools, request)
    return _Dump(operation, request, sight).run()


class _Dump:
    """One dump: what its steps share."""

    def __init__(self, operation: Operation, request: DumpRequest, sight: Sight) -> None:
        self.operation = operation
        self.tools = operation.tools
        self.record = operation.record
        self.interrupts = operation.interrupts
        self.request = request
        self.sight = sight
        self.cuda = CudaTree(self.tools, self.interrupts, sight.cuda)
        self.undo = Undo()
        self.findings = [finding for finding in sight.findings if not finding.blocks]
        self.manifest: Manifest | None = None
        self.frozen_from = 0.0
        self.frozen_until = 0.0
        self.end_was_noticed = False
        refs = [process.ref for process in sight.tree.processes]
        self.entry = operation.enter(request.pid, str(sight.output), refs, sight.cuda)

    def run(self) -> DumpResult:
        try:
            stage = self._stage()
            self._take_gpu()
            self._stream(stage)
        except BaseException as why:
            self._put_back(why)
            raise
        self._finish(stage)
        return self._result()

    def _stage(self) -> Stage:
        with self.record.phase("prepare", str(self.sight.output)):
            stage = Stage.create(self.sight.output)
            self.undo.add(f"the unfinished image {stage.folder} is left", stage.discard)
            self._note("staged", stage=str(stage.folder))
            self.undo.add("driver helpers are left", self.tools.cuda.close)
            self.cuda.open()
        return stage

    def _take_gpu(self) -> None:
        """Lock all, checkpoint all, and look that no GPU device is left open."""
        if not self.cuda.pids:
            self.record.reporter.note("no process of the tree uses CUDA: CRIU alone is enough")
        self.undo.add("the job does not run", self._check_running)
        self.undo.add("GPU state is not back", self.cuda.bring_back)
        self.frozen_from = self.record.now
        with self.record.phase("lock", _pids(self.cuda.pids)) as step:
            self._note("lock")
            rounds = self.cuda.lock(self.request.lock_timeout, self._relist)
            step.say(f"{_pids(self.cuda.pids)}, {rounds} round{'s' * (rounds > 1)}")
        if self.cuda.pids:
            with self.record.phase("gpu-out", "GPU memory to host memory") as step:
                self._note("checkpoint", first=self.cuda.first, threads=self.cuda.threads)
                self.cuda.checkpoint()
                step.advance(self.cuda.bytes)
        self.cuda.check_leftovers(self._relist().pids)

    def _relist(self) -> Tree:
        """List the tree again: its root and CUDA processes must be those that were looked at."""
        tree = self.tools.proc.tree(self.request.pid)
        now = {process.pid: process.ref for process in tree.processes}
        for seen in self.sight.tree.processes:
            if self._essential(seen) and now.get(seen.pid) != seen.ref:
                raise ProcessChanged(f"process {seen.pid} ended while it was being dumped")
        return tree

    def _stream(self, stage: Stage) -> None:
        """Run CRIU; its hook makes the commit while the tree is frozen."""
        sight, record = self.sight, self.record
        size = sum(process.rss for process in sight.tree.processes) + self.cuda.bytes
        with workspace(self.tools.state_dir, self.entry.id) as work, ExitStack() as phases:
            step = phases.enter_context(record.phase("stream", "memory to the image", size))
            packer = Packer(stage.criu, self.request.level, step.advance)

            def commit() -> None:
                files = packer.finish()
                phases.close()
                self._commit(stage, files)
                phases.enter_context(record.phase("end", "CRIU", stoppable=False))

            run = DumpRun(
                pid=self.request.pid,
                work=work,
                store=packer.store,
                abort=packer.abort,
                commit=commit,
                options=sight.options,
                leave_running=self.request.leave_running,
                stop_fd=self.interrupts.fd,
                deadline=deadline(size),
            )
            try:
                self.tools.criu.dump(run)
            except BaseException as why:  # noqa: BLE001 - raised again below, judged first
                packer.abort()
                self._after_failure(stage, why, work / DUMP_LOG)

    def _commit(self, stage: Stage, files: tuple[FileEntry, ...]) -> None:
        """The point of no return: from the rename on the image is what counts."""
        with self.record.phase("commit", str(self.sight.output), stoppable=False):
            by_name = {entry.name: entry for entry in files}
            self._note("commit")
            dumped = records.Dumped(
                sight=self.sight,
                tree=self._relist(),
                first=self.cuda.first,
                threads=self.cuda.threads,
                uses=self.cuda.uses,
                leave_running=self.request.leave_running,
                labels=self.request.labels,
                files=files,
                read=lambda name: reread(stage.criu, by_name[name]),
                receipt=self.record.receipt(),
            )
            manifest = records.manifest(self.tools, dumped)
            self.interrupts.check()
            stage.commit(manifest)
            self.manifest = manifest
        self.frozen_until = self.record.now

    def _after_failure(self, stage: Stage, why: BaseException, log: Path) -> None:
        """CRIU failed. If the image stands and the tree is gone, all is well nevertheless."""
        if self.manifest is None or not isinstance(why, Exception):
            self._free_connections(log)
            if isinstance(why, Stopped | WriteFailed):  # writing is what a signal cuts short
                self.interrupts.check()
            raise why
        tree = self.sight.tree
        alive = [p for p in tree.processes if self.tools.proc.alive(p.ref)]
        if len(alive) == len(tree.processes):
            stage.uncommit()
            self.manifest = None
            self._free_connections(log)
            raise why
        if alive:
            self.undo.keep()
            left = ", ".join(str(process.pid) for process in alive)
            raise UndoIncomplete(
                f"CRIU failed after the image was complete, and left process {left}: {why}",
                hint=f"The image {self.sight.output} is whole: end what is left, then restore it.",
                log=getattr(why, "log", None),
            ) from why
        self.findings.append(late_failure(why))

    def _free_connections(self, log: Path) -> None:
        """A CRIU that was killed leaves TCP connections cut; here its log is still at hand."""
        try:
            self.tools.net.free_connections(self.sight.tree.pids, log)
        except OSError as why:
            self.undo.add("TCP connections are cut", raising(why))

    def _check_running(self) -> None:
        """After a failed dump the job must be there, and nothing of it stopped.

        A plain child may have come to its end meanwhile, as it would have without us.
        """
        for process in self.sight.tree.processes:
            now = self.tools.proc.process(process.pid)
            if now is None or now.ref != process.ref or now.zombie:
                if self._essential(process) and not self.end_was_noticed:
                    raise ProcessChanged(f"process {process.pid} is gone")
            elif now.state in {"T", "t"} and process.state not in {"T", "t"}:
                raise DumpFailed(f"process {process.pid} is stopped")

    def _essential(self, process: Process) -> bool:
        return process.pid in self.cuda.first or process is self.sight.tree.root

    def _put_back(self, why: BaseException) -> None:
        """Undo everything and forget the operation."""
        if self.undo:
            self.record.reporter.warn(f"{why}; putting everything back")
        # then the job's end is the very reason, not something that is left to be put back
        self.end_was_noticed = isinstance(why, ProcessChanged | NoSuchProcess)
        self.undo.run(why)
        self.operation.journal.close(self.entry)

    def _note(self, step: str, **known: object) -> None:
        """Write down what is about to be done, and what has become known."""
        self.entry = self.operation.journal.step(self.entry, step, **known)

    def _finish(self, stage: Stage) -> None:
        """After the commit: let the job go on, or see that it is gone."""
        self.undo.keep()
        if self.request.leave_running:
            self._resume(stage)
        else:
            self._see_gone()
        self.tools.cuda.close()
        self.operation.journal.close(self.entry)

    def _resume(self, stage: Stage) -> None:
        if self.cuda.pids:
            with self.record.phase("gpu-in", "GPU memory back", stoppable=False) as step:
                try:
                    self.cuda.bring_back()
                except GpuckptError as why:
                    raise UndoIncomplete(
                        f"the image {stage.final} is whole, but the job was not given its GPU "
                        f"state back: {why}",
                        hint="End the job and restore the image.",
                    ) from why
                step.advance(self.cuda.bytes)
        self.frozen_until = self.record.now

    def _see_gone(self) -> None:
        refs = [process.ref for process in self.sight.tree.processes]
        with self.record.phase("gone", "waiting for every pid", stoppable=False):
            left = wait_gone(self.tools, refs, GONE_SECONDS)
        self.findings += [left_behind(process) for process in left]

    def _result(self) -> DumpResult:
        if self.manifest is None:
            raise DumpFailed("the dump ended without an image")
        return DumpResult(
            image=self.sight.output,
            manifest=self.manifest,
            receipt=self.record.receipt(),
            findings=tuple(self.findings),
            pause=self.frozen_until - self.frozen_from,
            running=bool(self.request.leave_running),
        )


def _pids(pids: list[int]) -> str:
    """Name a few processes, count many."""
    if not pids:
        return "no CUDA process"
    if len(pids) <= 3:  # noqa: PLR2004 - as many as fit beside a step's name
        return "process " + ", ".join(map(str, pids))
    return f"{len(pids)} CUDA processes"
