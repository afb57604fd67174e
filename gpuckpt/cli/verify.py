"""gpuckpt verify: is every byte of an image what was written, and this host what it needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from gpuckpt.cli import describe, units
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import ImageFolder, option
from gpuckpt.cli.page import Fields, Findings, Outcome, Page, Tone
from gpuckpt.errors import ImageDamaged

if TYPE_CHECKING:
    from gpuckpt.cli.page import Block
    from gpuckpt.flow.unchanged import Unchanged
    from gpuckpt.flow.verify import VerifyResult


Host = Annotated[
    bool,
    option(
        "--host",
        help="Compare this host, too: the job's files, software, model and tracked paths, driver "
        "and GPUs.",
    ),
]


def verify(app: Application, image: ImageFolder, *, host: Host = False) -> int:
    """Check every byte of an image against its digests.

    Nothing is executed. Truncated, missing and surplus files are found too. With --host it ends
    with exit status 8 if this host is not as the image needs it.
    """
    from gpuckpt.flow.verify import verify as act

    result = act(image, app.reporter, app.interrupts)
    if not host:
        return app.show(outcome(result))
    from gpuckpt.flow.unchanged import unchanged

    with app.reporter.step("host", "files, software, model, driver, GPUs"):
        seen = unchanged(app.tools, result.manifest)
    return app.show(outcome(result, seen))


def outcome(result: VerifyResult, host: Unchanged | None = None) -> Outcome:
    """Say that all is well, or name every damaged place."""
    if result.damage:
        places = units.count(len(result.damage), "damaged place")
        findings = tuple(damage.finding() for damage in result.damage)
        raise ImageDamaged(
            f"{places} in {result.image}",
            hint="Restore from another copy of the image.",
            findings=findings,
        )
    rows = [
        ("image", str(result.image)),
        ("job", describe.job(result.manifest)),
        ("checked", f"{units.count(result.files, 'file')}, {units.size(result.bytes)} stored"),
        ("took", f"{units.seconds(result.seconds)}, {units.rate(result.bytes, result.seconds)}"),
    ]
    rows += [("host", host.hostname)] if host is not None else []
    page = Page("intact: every byte is what was written", Tone.GOOD, (Fields(tuple(rows)),))
    return Outcome(
        payload={
            "image": result.image,
            "image_id": result.manifest.image_id,
            "files": result.files,
            "bytes": result.bytes,
            "raw_bytes": result.raw,
            "seconds": result.seconds,
            "host": host.hostname if host is not None else None,
            "findings": host.findings if host is not None else (),
        },
        page=page if host is None else _compared(page, host),
        error=host.error if host is not None else None,
    )


def _compared(page: Page, host: Unchanged) -> Page:
    """Add to the page of an intact image how this host stands to it."""
    blocks: list[Block] = [*page.blocks]
    if host.findings:
        blocks.append(Findings(host.findings))
    if host.error is None:
        return Page(f"{page.title}; this host has what it needs", Tone.GOOD, tuple(blocks))
    blocks.append(Fields((("error", f"{host.error.name}, exit {host.error.exit_code}"),)))
    number = sum(one.blocks for one in host.findings)
    verdict = f"intact, but this host does not match: {units.count(number, 'finding')}"
    return Page(verdict, Tone.BAD, tuple(blocks))
