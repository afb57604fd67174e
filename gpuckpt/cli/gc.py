"""gpuckpt gc: remove what runs that are over have left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuckpt.cli import units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import DryRun, reader
from gpuckpt.cli.page import Block, Fields, Outcome, Page, Table, Tone
from gpuckpt.cli.suggest import images

if TYPE_CHECKING:
    from gpuckpt.flow.gc import GcResult


Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FOLDER",
        help="Folders to look in.",
        parser=reader(values.folder("FOLDER")),
        autocompletion=images,
    ),
]


def gc(app: Application, folders: Folders = None, *, dry_run: DryRun = False) -> int:
    """Remove unfinished images, work folders and old logs of runs that are over.

    Never an image. FOLDER: where images are made; unfinished ones are removed there too, and the
    names CRIU makes for files without one (link_remap.N) if no image in any FOLDER and no process
    needs them: name /dev/shm together with all folders that hold images.
    """
    from gpuckpt.flow.gc import GcRequest
    from gpuckpt.flow.gc import gc as act

    request = GcRequest(tuple(folders or ()), dry_run)
    return app.show(outcome(act(app.tools, request, app.interrupts)))


def outcome(result: GcResult) -> Outcome:
    """Say what was removed and how much room that made."""
    blocks: list[Block] = []
    if result.removed:
        rows = tuple((one.kind, units.size(one.bytes), one.path) for one in result.removed)
        blocks.append(Table("", ("KIND", "SIZE", "PATH"), rows, right=frozenset({1})))
    if result.kept:
        blocks.append(Fields(result.kept, "kept"))
    things = f"{units.count(len(result.removed), 'thing')}, {units.size(result.bytes)}"
    title = f"{'would be removed' if result.dry_run else 'removed'}: {things}"
    return Outcome(
        payload={
            "dry_run": result.dry_run,
            "removed": result.removed,
            "kept": [{"path": path, "reason": reason} for path, reason in result.kept],
            "bytes": result.bytes,
        },
        page=Page(title if result.removed else "nothing to remove", Tone.NEUTRAL, tuple(blocks)),
        quiet="\n".join(one.path for one in result.removed),
    )
