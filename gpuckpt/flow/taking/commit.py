"""The image of a dump: from CRIU's streams to the rename that makes it count.

Three steps: what comes is packed; what has to be known of the frozen tree is written down; and
the commit, which may wait until the job runs again.
"""

from __future__ import annotations

from contextlib import nullcontext
from threading import Thread
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import Bug, WriteFailed
from gpuckpt.flow.sight.spooling import buffers
from gpuckpt.flow.sight.tcp import still_inside
from gpuckpt.flow.taking import carry, records
from gpuckpt.flow.taking.staging import shelf
from gpuckpt.flow.work import spans
from gpuckpt.image.pack import MEMORY, Packer
from gpuckpt.image.sink import Folder
from gpuckpt.tools.stopping import ended_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.spooling import Spool
    from gpuckpt.flow.taking.hands import Taking
    from gpuckpt.flow.taking.references import References
    from gpuckpt.flow.taking.software import Software
    from gpuckpt.flow.taking.staging import AnyStage
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.receipt import CountedStep, Stages
    from gpuckpt.flow.work.waiting import Tally
    from gpuckpt.image.manifest import FileEntry, Manifest
    from gpuckpt.tools.openfiles import OpenFiles
    from gpuckpt.tools.surroundings import Surroundings


class Commit:
    """What makes an image of a stage.

    `step` is the one that counts what comes in, `tally` says of it who waited for whom. `manifest`
    is there once the image is; `tree` are those that were frozen for it. `references` know the
    files that stay outside.
    """

    def __init__(
        self,
        operation: Operation,
        request: DumpRequest,
        taking: Taking,
        stage: AnyStage,
        *,
        software: Software,
        references: References,
    ) -> None:
        """Nothing is committed yet."""
        self._software = software
        self.stage = stage
        self.references = references
        self.step: CountedStep | Stages | None = None
        self.tally: Tally | None = None
        self.manifest: Manifest | None = None
        self.tree = taking.sight.tree
        self._operation = operation
        self._tools = operation.tools
        self._record = operation.record
        self._request = request
        self._taking = taking
        self._spool: Spool | None = None
        self._packer: Packer | None = None
        self._known: Manifest | None = None
        self._files: tuple[FileEntry, ...] | None = None
        self._writer: Thread | None = None
        self._failed: Exception | None = None

    @property
    def decided(self) -> bool:
        """Whether CRIU was told yes: all that an image needs of the tree is ours."""
        return self.manifest is not None or (
            self._request.leave_running and self._known is not None
        )

    @property
    def packer(self) -> Packer:
        """What stores CRIU's streams, made when it is first asked for."""
        if self._packer is None:
            kept, place = self._spool, shelf(self.stage, self._taking)
            most = MEMORY - Folder.memory + place.memory
            self._packer = Packer(
                place,
                self._request.level,
                self._count,
                memory=min(most, buffers(self._taking.sight.facts)),
                keep=records.wanted,
                spool=kept.bytes if kept is not None else 0,
                read_first=kept is not None and kept.whole,
            )
        return self._packer

    def spool(self, kept: Spool) -> None:
        """Get the memory ready in which a job's bytes wait when it has gone on.

        Raises:
            Interrupted: a signal came.
        """
        self._spool = kept
        self._record.reporter.note(kept.story)
        with self._record.phase("spool", "memory for what waits", kept.bytes) as step:
            with ended_by(self._operation.interrupts.fd, self.packer.abort):
                self.packer.warm(step.advance)
            self._operation.interrupts.check()

    def abort(self) -> None:
        """Stop all writing, and wait until nobody is about to commit any more."""
        if self._packer is not None:
            self._packer.abort()
        if self._writer is not None:
            self._writer.join()

    def decide(self) -> None:
        """Take all that is needed of the frozen tree; commit, unless the job goes on first."""
        packer = self.packer
        packer.received(last=False)
        opened = records.opened(packer.kept)
        if self._taking.sight.kept:
            still_inside(opened.connections)
        # CRIU has kept the tree's clocks by now, and files may take long
        around = {pid: self._tools.proc.surroundings(pid) for pid in self._taking.relist().pids}
        found = self._carry(opened, packer)
        packer.received()
        if self._request.leave_running:
            with self._record.phase("record", "what the manifest tells", stoppable=False):
                known = self._known_of(packer, opened, found, around)
                self._operation.interrupts.check()
                carry.unlink(self._tools, found.files)
            self._known = known
            return
        with self._record.phase("commit", str(self._taking.sight.output), stoppable=False):
            self._taking.note("commit")
            with self._record.part("facts"):
                self._known = self._known_of(packer, opened, found, around)
            with self._record.part("drain") as step:
                self._files = packer.finish()
                self._tally(step)
            self._operation.interrupts.check()
            carry.unlink(self._tools, found.files)
            self._rename()

    def start_writing(self) -> None:
        """Let what was decided be written, and committed, while others do what they have to.

        Should the driver never give the job its GPU state back, the image is there all the same.
        """
        self._writer = Thread(target=self._write, name="commit", daemon=True)
        self._writer.start()

    def complete(self, *, stoppable: bool = True) -> None:
        """See that what was decided is committed; if `stoppable`, a signal is a reason not to.

        Raises:
            WriteFailed, Interrupted: there is no image.
        """
        check = self._operation.interrupts.check if stoppable else lambda: None
        # whether a signal came too late is known when the writing is over, and not before
        with self._record.phase("write", "what waits in memory", stoppable=False) as step:
            if self._packer is not None:
                self._packer.on_packed = step.advance
            fd = self._operation.interrupts.fd
            with ended_by(fd, self.abort) if stoppable else nullcontext():
                self._write() if self._writer is None else self._writer.join()
            self._tally(step)
            if isinstance(self._failed, WriteFailed):  # writing is what a signal cuts short
                check()
            if self._failed is not None:
                raise self._failed
            if self.manifest is None:
                check()
                self._rename()

    def _write(self) -> None:
        """Write all, and commit it unless a signal came: whether that counts is not known here."""
        try:
            if self._packer is not None and self._files is None:
                self._files = self._packer.finish()
            if self._operation.interrupts.pending is None:
                self._rename()
        except Exception as why:  # noqa: BLE001 - raised again by who waits for it
            self._failed = why

    def take_back(self) -> None:
        """Make a stage of the image again, or what is not even that.

        Raises:
            WriteFailed: the image is still there.
        """
        self.abort()
        self.stage.uncommit()
        self._record.forget(spans.COMMITTED)
        self.manifest = self._known = None

    def _rename(self) -> None:
        """Take the point of no return: from here on the image is what counts."""
        if self._known is None or self._files is None:
            raise Bug("an image is to be made, and nothing is known of its job")
        manifest = records.completed(self._known, self._files, self._record.receipt())
        self.stage.commit(manifest)
        self.manifest = manifest
        self._record.event(spans.COMMITTED)

    def _known_of(
        self,
        packer: Packer,
        opened: OpenFiles,
        found: carry.Found,
        around: Mapping[int, Surroundings],
    ) -> Manifest:
        """Write down what is to be known of the frozen tree; the files come later."""
        sight, taking = self._taking.sight, self._taking
        self.tree = taking.relist()
        if sight.options.stand_ins:  # what was opened since the last look has none
            taking.check_devices()
        dumped = records.Dumped(
            sight=sight,
            tree=self.tree,
            around=around,
            inside=taking.numbers(),
            first=taking.cuda.first,
            threads=taking.cuda.threads,
            uses=taking.cuda.uses,
            leave_running=self._request.leave_running,
            labels=self._request.labels,
            images=packer.kept,
            opened=opened,
            carried=carry.as_known(found.files, sight.space),
            along=found.along,
            prints=self.references.of,
            quiesced=taking.quiesced,
            software=self._software.now(self.tree),
        )
        return records.manifest(self._tools, dumped)

    def _carry(self, opened: OpenFiles, packer: Packer) -> carry.Found:
        """Take along the job's own work, and what would be missing where the job comes back."""
        found = carry.find(
            self._tools,
            self._taking.relist(),
            opened.remaps,
            self._request.files,
            space=self._taking.sight.space,
            leave=(str(self.stage.folder),),
        )
        if not found.files:
            return found
        size = sum(one.bytes for one in found.files)
        with self._record.phase("files", carry.named(found.files), size) as self.step:
            return replace(found, files=carry.store(self._tools, found.files, packer))

    def _tally(self, step: CountedStep) -> None:
        if self.tally is not None:
            self.tally.tell(step)

    def _count(self, amount: int) -> None:
        if self.step is not None:
            self.step.advance(amount)
