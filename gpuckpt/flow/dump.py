"""dump: take a running tree off this host into an image, or leave everything as it was.

The order of things is the design: everything that can be refused is refused before anything is
touched; every step has its way back before it is tried; and the image becomes visible by one
rename, made while the tree is still frozen and can still go on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from gpuckpt.errors import DumpFailed, Stopped, UndoIncomplete, WriteFailed
from gpuckpt.flow.request import DumpRequest, DumpResult
from gpuckpt.flow.sight.forecast import forecast
from gpuckpt.flow.sight.tcp import still_inside
from gpuckpt.flow.taking import carry, records
from gpuckpt.flow.taking.aftermath import late_failure, late_gpu, left_behind, softened, unlock
from gpuckpt.flow.taking.hands import Taking, first_look
from gpuckpt.flow.work.history import History, record_of
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.tasks import wait_gone
from gpuckpt.flow.work.turn import turn
from gpuckpt.flow.work.undo import raising
from gpuckpt.flow.work.workspace import workspace
from gpuckpt.image.pack import Packer
from gpuckpt.image.reread import reread
from gpuckpt.image.stage import Stage
from gpuckpt.tools.criu import DUMP_LOG
from gpuckpt.tools.criunames import seen
from gpuckpt.tools.criurun import DumpRun, deadline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpuckpt.events import Reporter
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import FileEntry, Manifest
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.openfiles import OpenFiles

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
    history = History(tools.state_dir)
    with turn(operation, needed=sight.options.link_remap) as waited:
        if waited:  # another job's dump may have taken an hour
            with operation.record.phase("look again", f"process {request.pid}"):
                sight = first_look(operation, replace(request, output=sight.output))
        stays = request.leave_running
        expected = forecast(sight.facts, history.records(), leave_running=stays).pause
        result = replace(_Dump(operation, request, sight).run(), expected=expected)
    record = record_of(result.manifest, result.receipt)
    history.add(structs.replace(record, pause=result.pause, expected=expected))
    return result


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
        self.manifest: Manifest | None = None
        self.tree = sight.tree  # as it is frozen, from the commit on
        self.frozen_until = 0.0

    @property
    def sight(self) -> Sight:
        return self.taking.sight

    def run(self) -> DumpResult:
        try:
            self.taking.come_to_rest(self.request)
            stage = self._stage()
            self._take_gpu()
            self._stream(stage)
        except BaseException as why:
            self.taking.put_back(why)
            raise
        self._finish(stage)
        return self._result()

    def _stage(self) -> Stage:
        with self.record.phase("prepare", str(self.sight.output)):
            stage = Stage.create(self.sight.output)
            self.undo.add(f"the unfinished image {stage.folder} is left", stage.discard)
            self.taking.note("staged", stage=str(stage.folder))
            self.taking.open()
        return stage

    def _take_gpu(self) -> None:
        if not self.cuda.pids:
            self.record.reporter.note("no process of the tree uses CUDA: CRIU alone is enough")
        self.taking.take_gpu(self.request.lock_timeout, thp=self.request.thp)

    def _stream(self, stage: Stage) -> None:
        """Run CRIU; its hook makes the commit while the tree is frozen."""
        sight, record = self.sight, self.record
        size = sum(process.rss for process in sight.tree.processes) + self.cuda.bytes
        with workspace(self.tools.state_dir, self.taking.entry.id) as work, ExitStack() as phases:
            step = phases.enter_context(record.phase("stream", "memory to the image", size))
            self.taking.note("stream")
            packers = [Packer(stage.criu, self.request.level, step.advance)]

            def commit() -> None:
                files = packers[0].finish()
                phases.close()
                self._commit(stage, files, packers)
                phases.enter_context(record.phase("end", "CRIU", stoppable=False))

            numbers = self.taking.numbers()
            run = DumpRun(
                pid=numbers.get(self.request.pid, self.request.pid),
                work=work,
                store=packers[0].store,
                abort=lambda: _abort(packers),
                commit=commit,
                options=self.sight.options,
                leave_running=self.request.leave_running,
                stop_fd=self.interrupts.fd,
                deadline=deadline(size),
                names=lambda: seen(sight.facts.look, numbers),
                place=self.sight.space,
            )
            try:
                self.tools.criu.dump(run)
            except BaseException as why:  # noqa: BLE001 - raised again below, judged first
                _abort(packers)
                self._after_failure(stage, why, work / DUMP_LOG)
            if self.manifest is not None and not self.request.leave_running:
                self.findings += unlock(self.tools, self.manifest, work / DUMP_LOG)

    def _commit(self, stage: Stage, files: tuple[FileEntry, ...], packers: list[Packer]) -> None:
        """The point of no return: from the rename on the image is what counts."""
        by_name = {entry.name: entry for entry in files}

        def read(name: str) -> bytes:
            return reread(stage.criu, by_name[name])

        opened = carry.opened(by_name, read)
        if self.sight.kept:
            still_inside(opened.connections)
        carried, more = self._carry(stage, opened, packers)
        with self.record.phase("commit", str(self.sight.output), stoppable=False):
            self.taking.note("commit")
            self.tree = self.taking.relist()
            if self.sight.options.stand_ins:  # what was opened since the last look has none
                self.taking.check_devices()
            dumped = records.Dumped(
                sight=self.sight,
                tree=self.tree,
                inside=self.taking.numbers(),
                first=self.cuda.first,
                threads=self.cuda.threads,
                uses=self.cuda.uses,
                leave_running=self.request.leave_running,
                labels=self.request.labels,
                files=(*files, *more),
                opened=opened,
                carried=carry.as_known(carried, self.sight.space),
                quiesced=self.taking.quiesced,
                read=read,
                receipt=self.record.receipt(),
            )
            manifest = records.manifest(self.tools, dumped)
            self.interrupts.check()
            carry.unlink(self.tools, carried)
            stage.commit(manifest)
            self.manifest = manifest
        self.frozen_until = self.record.now

    def _carry(
        self, stage: Stage, opened: OpenFiles, packers: list[Packer]
    ) -> tuple[tuple[CarriedFile, ...], tuple[FileEntry, ...]]:
        """Take along the files that would be missing where the job comes back."""
        found = carry.find(self.tools, self.taking.relist().pids, opened.remaps, self.sight.space)
        if not found:
            return (), ()
        with self.record.phase("files", carry.named(found), sum(f.bytes for f in found)) as step:
            packer = Packer(stage.criu, self.request.level, step.advance)
            packers.append(packer)
            carried = carry.store(self.tools, found, packer)
            return carried, packer.finish()

    def _after_failure(self, stage: Stage, why: BaseException, log: Path) -> None:
        """CRIU failed. If the image stands and the tree is gone, all is well nevertheless."""
        if self.manifest is None or not isinstance(why, Exception):
            self._free_connections(log)
            if isinstance(why, Stopped | WriteFailed):  # writing is what a signal cuts short
                self.interrupts.check()
            raise why
        living = [p for p in self.tree.processes if not p.zombie]
        alive = [p for p in living if self.tools.proc.alive(p.ref)]
        if len(alive) == len(living):
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

    def _finish(self, stage: Stage) -> None:
        """After the commit: let the job go on, or see that it is gone."""
        self.undo.keep()
        try:
            if self.request.leave_running:
                self._resume(stage)
            else:
                self._see_gone()
        finally:
            self.taking.release_huge_pages()
        self.taking.let_go()
        stage.close()

    def _resume(self, stage: Stage) -> None:
        """Give the job its GPU state back; a step that failed is tried once more.

        A call that failed does not say how far it got, and the states are read anew. If there is
        no GPU memory for it the helpers must not do, without us, what we do not dare.
        """
        self.undo.add("driver helpers are left", self.tools.cuda.close)
        self.undo.add("the job is not back", self.taking.give_back)
        try:
            self.taking.give_back()
        except Exception as why:  # noqa: BLE001 - whatever it was, the job has to get on
            told = f"the image {stage.final} is whole, but the job was not given its GPU state back"
            self.record.reporter.warn(f"{why}; trying once more")
            self.undo.run(UndoIncomplete(told, hint="End the job and restore the image."))
            self.findings.append(late_gpu(why))
        self.undo.keep()
        self.findings += map(softened, self.taking.unmoved)
        self.frozen_until = self.record.now

    def _see_gone(self) -> None:
        # a job forks and waits while it is looked at: those count that were frozen with it
        with self.record.phase("gone", "waiting for every pid", stoppable=False):
            left = wait_gone(self.tools, [one.ref for one in self.tree.processes], GONE_SECONDS)
        self.findings += [left_behind(process) for process in left]

    def _result(self) -> DumpResult:
        if self.manifest is None:
            raise DumpFailed("the dump ended without an image")
        return DumpResult(
            image=self.sight.output,
            manifest=self.manifest,
            receipt=self.record.receipt(),
            findings=tuple(self.findings),
            pause=self.frozen_until - self.taking.frozen_from,
            running=bool(self.request.leave_running),
        )


def _abort(packers: Iterable[Packer]) -> None:
    """Stop all writing."""
    for packer in packers:
        packer.abort()
