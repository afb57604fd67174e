"""gpuckpt verify: is every byte of an image what was written?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import describe, units
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import ImageFolder
from gpuckpt.cli.page import Fields, Outcome, Page, Tone
from gpuckpt.errors import ImageDamaged

if TYPE_CHECKING:
    from gpuckpt.flow.verify import VerifyResult


def verify(app: Application, image: ImageFolder) -> int:
    """Check every byte of an image against its digests.

    Nothing is executed. Truncated, missing and surplus files are found too.
    """
    from gpuckpt.flow.verify import verify as act

    return app.show(outcome(act(image, app.reporter, app.interrupts)))


def outcome(result: VerifyResult) -> Outcome:
    """Say that all is well, or name every damaged place."""
    if result.damage:
        places = units.count(len(result.damage), "damaged place")
        findings = tuple(damage.finding() for damage in result.damage)
        raise ImageDamaged(
            f"{places} in {result.image}",
            hint="Restore from another copy of the image.",
            findings=findings,
        )
    rows = (
        ("image", str(result.image)),
        ("job", describe.job(result.manifest)),
        ("checked", f"{units.count(result.files, 'file')}, {units.size(result.bytes)} stored"),
        ("took", f"{units.seconds(result.seconds)}, {units.rate(result.bytes, result.seconds)}"),
    )
    return Outcome(
        payload={
            "image": result.image,
            "image_id": result.manifest.image_id,
            "files": result.files,
            "bytes": result.bytes,
            "raw_bytes": result.raw,
            "seconds": result.seconds,
        },
        page=Page("intact: every byte is what was written", Tone.GOOD, (Fields(rows),)),
    )
