"""evidence --check: does a file of evidence hold what it says of itself?

All that follows from something else in it is worked out anew; with the image at hand, all that
comes from there as well, and every byte of it is read. What this host has recorded of the image
before must stand in it as it was recorded. A target that was not met is no flaw: it has
to be told, and it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuckpt.errors import UsageError
from gpuckpt.flow.evidence import facts, sums
from gpuckpt.flow.evidence.document import Sealed
from gpuckpt.flow.evidence.records import unlike, unlike_the_dump
from gpuckpt.flow.evidence.sums import flaw
from gpuckpt.flow.returning.compared import old_place
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image import sealed, wire
from gpuckpt.image.check import check_files
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.location import Location
    from gpuckpt.model import Finding

_LARGEST = sealed.LARGEST_MANIFEST


class Checked(Value, frozen=True):
    """What a check came to; `evidence` is None if it could not be read, `bytes` of an image were.

    Without an image that is None.
    """

    path: Path
    evidence: Sealed | None
    findings: tuple[Finding, ...]
    bytes: int | None = None


def check(
    path: Path,
    image: Location | None,
    state_dir: Path,
    reporter: Reporter,
    interrupts: Interrupts,
) -> Checked:
    """Check a file of evidence, against what is recorded here, and an image if there is one.

    Raises:
        UsageError: the file cannot be read.
        NotAnImage, ImageUntrusted: the image cannot.
        Interrupted: a signal came.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}") from why
    found, findings = judge(data)
    if found is not None:
        findings += unlike(found, state_dir)
    if found is None or image is None:
        return Checked(path, found, tuple(findings))
    findings += _by_image(found, image, reporter, interrupts)
    return Checked(path, found, tuple(findings), found.image.stored)


def judge(data: bytes) -> tuple[Sealed | None, list[Finding]]:
    """Return the evidence in `data`, and everything that is wrong with it."""
    findings = []
    if len(data) > _LARGEST:
        return None, [flaw("schema", "file", f"It has more than {_LARGEST} bytes.")]
    if not sealed.unbroken(data):
        findings.append(flaw("seal", "blake3", "The file does not have the digest it ends with."))
    try:
        plain = msgspec.json.decode(data)
        findings += [flaw("schema", "file", f"{one}.") for one in wire.flaws(plain)]
        found = msgspec.convert(wire.unescape(plain), Sealed)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as why:
        return None, [*findings, flaw("schema", "file", f"It is not as the schema says: {why}.")]
    return found, [*findings, *sums.flaws(found)]


def _by_image(
    found: Sealed, path: Location, reporter: Reporter, interrupts: Interrupts
) -> Iterator[Finding]:
    """Compare with the image itself; its bytes with its digests."""
    with open_image(path, trust=False) as image:
        manifest = image.manifest
        for name, told, is_ in (
            ("image", found.image, facts.saved(image)),
            ("job", found.job, facts.job(manifest)),
            ("before", found.before, old_place(manifest)),
        ):
            for field in told.__struct_fields__:
                if getattr(told, field) != getattr(is_, field):
                    where = f"{name}.{field}"
                    yield flaw("digest", where, f"{where} is not that of the image {path}.")
        yield from unlike_the_dump(found, manifest)
        with reporter.step("verify", str(path), manifest.totals.stored) as step:

            def on_bytes(count: int) -> None:
                step.advance(count)
                interrupts.check()

            for damage in check_files(image, on_bytes):
                yield damage.finding()
