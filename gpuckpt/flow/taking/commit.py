"""The image of a dump: from CRIU's streams to the rename that makes it count.

Three steps: what comes is packed; what has to be known of the frozen tree is written down; and
the commit, which may wait until the job runs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.sight.tcp import still_inside
from gpuckpt.flow.taking import carry, records
from gpuckpt.flow.work import spans
from gpuckpt.image.pack import Packer

if TYPE_CHECKING:
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.taking.hands import Taking
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.receipt import CountedStep, Stages
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.stage import Stage
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.openfiles import OpenFiles


class Commit:
    """What makes an image of a stage.

    `step` is the one that counts what comes in. `manifest` is there once the image is; `tree` are
    those that were frozen for it.
    """

    def __init__(
        self, operation: Operation, request: DumpRequest, taking: Taking, stage: Stage
    ) -> None:
        """Nothing is committed yet."""
        self.stage = stage
        self.step: CountedStep | Stages | None = None
        self.manifest: Manifest | None = None
        self.tree = taking.sight.tree
        self._operation = operation
        self._tools = operation.tools
        self._record = operation.record
        self._request = request
        self._taking = taking
        self._packer: Packer | None = None
        self._known: Manifest | None = None

    def begin(self, root: int) -> Packer:
        """Return what stores the streams of a CRIU to whom the job's root is `root`."""
        keep = records.wanted(root)
        self._packer = Packer(self.stage.criu, self._request.level, self._count, keep=keep)
        return self._packer

    def abort(self) -> None:
        """Stop all writing."""
        if self._packer is not None:
            self._packer.abort()

    def make(self, packer: Packer) -> None:
        """Take the point of no return: from the rename on the image is what counts."""
        opened = records.opened(packer.kept)
        if self._taking.sight.kept:
            still_inside(opened.connections)
        carried = self._carry(opened, packer)
        with self._record.phase("commit", str(self._taking.sight.output), stoppable=False):
            self._taking.note("commit")
            with self._record.part("facts"):
                known = self._known_of(packer, opened, carried)
            with self._record.part("drain"):
                files = packer.finish()
            self._operation.interrupts.check()
            carry.unlink(self._tools, carried)
            manifest = records.completed(known, files, self._record.receipt())
            self.stage.commit(manifest)
            self.manifest = manifest
        self._record.event(spans.COMMITTED)

    def take_back(self) -> None:
        """Make a stage of the image again.

        Raises:
            WriteFailed: the image is still there.
        """
        self.stage.uncommit()
        self._record.forget(spans.COMMITTED)
        self.manifest = None

    def _known_of(
        self, packer: Packer, opened: OpenFiles, carried: tuple[CarriedFile, ...]
    ) -> Manifest:
        """Write down what is to be known of the frozen tree; the files come later."""
        sight, taking = self._taking.sight, self._taking
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
            images=packer.kept,
            opened=opened,
            carried=carry.as_known(carried, sight.space),
            quiesced=taking.quiesced,
        )
        return records.manifest(self._tools, dumped)

    def _carry(self, opened: OpenFiles, packer: Packer) -> tuple[CarriedFile, ...]:
        """Take along the files that would be missing where the job comes back."""
        pids, space = self._taking.relist().pids, self._taking.sight.space
        found = carry.find(self._tools, pids, opened.remaps, space)
        if not found:
            return ()
        size = sum(one.bytes for one in found)
        with self._record.phase("files", carry.named(found), size) as self.step:
            return carry.store(self._tools, found, packer)

    def _count(self, amount: int) -> None:
        if self.step is not None:
            self.step.advance(amount)
