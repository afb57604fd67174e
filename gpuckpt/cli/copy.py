"""gpuckpt copy: an image to another place, or from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuckpt.cli import describe, units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import ImageFolder, option
from gpuckpt.cli.page import Fields, Next, Outcome, Page, Tone
from gpuckpt.cli.suggest import images

if TYPE_CHECKING:
    from gpuckpt.flow.copy import CopyResult

Destination = Annotated[
    str,
    typer.Argument(
        metavar="DEST",
        help="A path or URL. With a slash at its end, or if it is a folder of this host: the "
        "image goes into it, with the name it has.",
        parser=values.destination,
        autocompletion=images,
    ),
]
Discard = Annotated[
    bool,
    option(
        "--discard",
        help="Copy nothing: remove what a copy of this image that was cut short left at DEST.",
    ),
]


def copy(
    app: Application, image: ImageFolder, dest: Destination, *, discard: Discard = False
) -> int:
    """Copy an image between folders and stores.

    Files are sent side by side, large ones in pieces. All that has arrived is read back and
    compared with the image's digests; only then it becomes an image. After a failure or a signal
    the same command goes on with what has arrived.
    """
    from gpuckpt.flow.copy import CopyRequest
    from gpuckpt.flow.copy import copy as act
    from gpuckpt.tools.remote import Stores

    place = values.location("DEST")(dest)
    request = CopyRequest(image, place, inside=dest.endswith("/"), discard=discard)
    return app.show(outcome(act(request, Stores(), app.reporter, app.interrupts), discard=discard))


def outcome(result: CopyResult, *, discard: bool = False) -> Outcome:
    """Say what was sent, and what was proved."""
    rows = [("image", str(result.image)), ("copy", str(result.place))]
    if discard:
        title = "removed what was left" if result.discarded else "nothing was left"
    elif result.already:
        title = "the image is there already"
    else:
        title = "copied: every byte that arrived is what was written"
        stored = f"{units.count(result.files, 'file')}, {units.size(result.bytes)} stored"
        rows += [
            ("job", describe.job(result.manifest)),
            ("holds", stored),
            ("sent", f"{units.size(result.sent)}, {units.rate(result.sent, result.sending)}"),
            ("took", f"{units.seconds(result.seconds)}, with reading all of it back"),
        ]
    return Outcome(
        payload={
            "image": result.image,
            "copy": result.place,
            "image_id": result.manifest.image_id,
            "already": result.already,
            "discarded": result.discarded,
            "files": result.files,
            "bytes": result.bytes,
            "sent": result.sent,
            "seconds": result.seconds,
            "sending": result.sending,
        },
        page=Page(title, Tone.GOOD, (Fields(tuple(rows)), *_following(result, discard=discard))),
        quiet=str(result.place),
    )


def _following(result: CopyResult, *, discard: bool) -> tuple[Next, ...]:
    if discard:
        return ()
    return (Next((describe.command_line("gpuckpt", "restore", str(result.place)),)),)
