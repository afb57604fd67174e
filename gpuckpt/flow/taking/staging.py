"""Where an image is made: a hidden folder beside its final name, or objects in a store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, WriteFailed
from gpuckpt.flow.sight.spooling import buffers
from gpuckpt.image.remotestage import RemoteStage
from gpuckpt.image.stage import Stage

if TYPE_CHECKING:
    from gpuckpt.flow.taking.hands import Taking
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.shelf import Shelf
    from gpuckpt.location import Location

AnyStage = Stage | RemoteStage


def begin(tools: Toolbox, taking: Taking, output: Location) -> AnyStage:
    """Begin the image `output`, so that it is found again whenever we are cut short.

    Raises:
        ImageExists, NotWritable, NoSpace, UsageError: it cannot be begun.
    """
    if isinstance(output, Path):
        stage = Stage.create(output)
        taking.undo.add(f"the unfinished image {stage.folder} is left", stage.discard)
        taking.note("staged", stage=str(stage.folder))
        return stage
    sent = RemoteStage(tools.stores.folder(output), output, taking.entry.id)
    # a name that is hidden beside the image's could be looked for; there is none in a store
    taking.note("staged", stage=str(output))
    taking.undo.add(f"objects are left at {output}", lambda: remove(taking, sent))
    sent.claim()
    return sent


def shelf(stage: AnyStage, taking: Taking) -> Shelf:
    """Return the place for CRIU's streams; a job may grow while it is looked at."""
    if isinstance(stage, Stage):
        return stage.shelf()
    facts = taking.sight.facts
    return stage.shelf(2 * facts.image_bytes, buffers(facts))


def remove(taking: Taking, stage: AnyStage) -> None:
    """Remove what there is of an image that is not to be made.

    What is left in a store that cannot be reached is no matter of the job: it is told of, and
    stands in the journal for a repair.

    Raises:
        WriteFailed: something is left on the disk.
    """
    try:
        stage.discard()
    except WriteFailed as why:
        if isinstance(stage, Stage):
            raise
        with suppress(GpuckptError):  # then a repair has to find out what it was
            taking.note("abandoned")
        taking.abandoned = why.message
