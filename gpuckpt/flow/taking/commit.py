"""The commit of a dump: from the files that are stored to the image that counts.

Made while the tree stands frozen and can still go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.sight.tcp import still_inside
from gpuckpt.flow.taking import carry, records
from gpuckpt.image.pack import Packer
from gpuckpt.image.reread import reread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.taking.hands import Taking
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.image.manifest import FileEntry, Manifest
    from gpuckpt.image.stage import Stage
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.openfiles import OpenFiles


class Commit:
    """What makes an image of a stage.

    `manifest` is there once the image is; `tree` are those that were frozen with it, by then;
    `done` is when it was made.
    """

    def __init__(
        self, operation: Operation, request: DumpRequest, taking: Taking, stage: Stage
    ) -> None:
        """Nothing is committed yet."""
        self.stage = stage
        self.manifest: Manifest | None = None
        self.tree = taking.sight.tree
        self.done = 0.0
        self._operation = operation
        self._tools = operation.tools
        self._record = operation.record
        self._request = request
        self._taking = taking

    def make(self, files: tuple[FileEntry, ...], packers: list[Packer]) -> None:
        """Take the point of no return: from the rename on the image is what counts."""
        by_name = {entry.name: entry for entry in files}
        sight, taking = self._taking.sight, self._taking

        def read(name: str) -> bytes:
            return reread(self.stage.criu, by_name[name])

        opened = carry.opened(by_name, read)
        if sight.kept:
            still_inside(opened.connections)
        carried, more = self._carry(opened, packers)
        with self._record.phase("commit", str(sight.output), stoppable=False):
            taking.note("commit")
            self.tree = taking.relist()
            if sight.options.stand_ins:  # what was opened since the last look has none
                taking.check_devices()
            dumped = records.Dumped(
                sight=sight,
                tree=self.tree,
                inside=taking.numbers(),
                first=taking.cuda.first,
                threads=taking.cuda.threads,
                uses=taking.cuda.uses,
                leave_running=self._request.leave_running,
                labels=self._request.labels,
                files=(*files, *more),
                opened=opened,
                carried=carry.as_known(carried, sight.space),
                quiesced=taking.quiesced,
                read=read,
                receipt=self._record.receipt(),
            )
            manifest = records.manifest(self._tools, dumped)
            self._operation.interrupts.check()
            carry.unlink(self._tools, carried)
            self.stage.commit(manifest)
            self.manifest = manifest
        self.done = self._record.now

    def take_back(self) -> None:
        """Make a stage of the image again.

        Raises:
            WriteFailed: the image is still there.
        """
        self.stage.uncommit()
        self.manifest = None

    def _carry(
        self, opened: OpenFiles, packers: list[Packer]
    ) -> tuple[tuple[CarriedFile, ...], tuple[FileEntry, ...]]:
        """Take along the files that would be missing where the job comes back."""
        pids, space = self._taking.relist().pids, self._taking.sight.space
        found = carry.find(self._tools, pids, opened.remaps, space)
        if not found:
            return (), ()
        size = sum(one.bytes for one in found)
        with self._record.phase("files", carry.named(found), size) as step:
            packer = Packer(self.stage.criu, self._request.level, step.advance)
            packers.append(packer)
            carried = carry.store(self._tools, found, packer)
            return carried, packer.finish()


def abort(packers: Iterable[Packer]) -> None:
    """Stop all writing."""
    for packer in packers:
        packer.abort()
