"""Verifying an image: every byte is read and compared, nothing of it is used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image.check import check_files
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.image.damage import Damage
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location


class VerifyResult(Value, frozen=True):
    """What a look at every byte came to; `bytes` are stored ones, `raw` what they unpack to."""

    image: Location
    manifest: Manifest
    files: int
    bytes: int
    raw: int
    seconds: float
    damage: tuple[Damage, ...]


def verify(
    path: Location,
    reporter: Reporter,
    interrupts: Interrupts | None = None,
    stores: StoresTool | None = None,
) -> VerifyResult:
    """Read the whole image at `path` and compare it with its digests.

    Damage is in the result; only what is no image at all, or not trusted, raises.

    Raises:
        NotAnImage: there is no image there.
        ImageUntrusted: others could have written it.
        ImageDamaged: its manifest cannot be read.
        ImageUnsupported: it has a newer format.
        Interrupted: a signal asked to stop.
    """
    started = time.monotonic()
    interrupts = interrupts or Interrupts()
    with open_image(path, stores, check=interrupts.check) as image:
        totals = image.manifest.totals
        with reporter.step("verify", str(path), totals.stored) as step:

            def on_bytes(count: int) -> None:
                step.advance(count)
                interrupts.check()

            damage = check_files(image, on_bytes)
    return VerifyResult(
        image=path,
        manifest=image.manifest,
        files=len(image.entries),
        bytes=totals.stored,
        raw=totals.raw,
        seconds=time.monotonic() - started,
        damage=damage,
    )
