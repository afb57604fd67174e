"""gpuckpt evidence: what is known of an image and its restores, in one file for the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuckpt.cli import units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import option, reader
from gpuckpt.cli.page import Fields, Findings, Outcome, Page, Table, Tone
from gpuckpt.cli.suggest import images
from gpuckpt.errors import EvidenceFlawed, UsageError
from gpuckpt.location import Location

if TYPE_CHECKING:
    from gpuckpt.flow.evidence.check import Checked
    from gpuckpt.flow.evidence.document import Evidence, Statement
    from gpuckpt.model import Finding


def _target(text: str) -> str:
    """Check the form of INTERVAL=SECONDS."""
    from gpuckpt.flow.evidence.make import OF_DUMP, OF_RESTORE

    hint = f"Write it as INTERVAL=SECONDS. Intervals: {', '.join(sorted(OF_DUMP | OF_RESTORE))}."
    name, _, at_most = text.partition("=")
    if name not in OF_DUMP | OF_RESTORE:
        raise values.refuse("--target", f"there is no interval {name!r}", hint)
    values.seconds("--target", zero=True)(at_most)
    return text


def _pair(text: str) -> tuple[str, float]:
    name, _, at_most = text.partition("=")
    return name, float(at_most)


MaybeImage = Annotated[
    Location | None,
    typer.Argument(
        metavar="IMAGE",
        help="The folder of the image, or its URL.",
        parser=reader(values.location("IMAGE")),
        autocompletion=images,
    ),
]
Receipts = Annotated[
    list[Path] | None,
    option(
        "--restore",
        metavar="RECEIPT",
        help="The receipt of a restore that was planned: its file, or what --json printed. May be "
        "given several times.",
        parser=values.path("--restore", "the file of a receipt"),
    ),
]
Planned = Annotated[
    int | None,
    option(
        "--planned",
        metavar="COUNT",
        help="How many restores were planned. Default: as many as are told of.",
        parser=values.whole("--planned", 0, 10_000),
    ),
]
Targets = Annotated[
    list[str] | None,
    option(
        "--target",
        metavar="INTERVAL=SECONDS",
        help="What an interval of each attempt may take, such as runs=30. May be given several "
        "times.",
        parser=_target,
    ),
]
Output = Annotated[
    Path | None,
    option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to. Default: the name of the image and .evidence.json, in the current folder.",
        parser=values.path("--output", "the path of a new file"),
    ),
]
Check = Annotated[
    Path | None,
    option(
        "--check",
        metavar="FILE",
        help="Check a file of evidence instead; with IMAGE also against that, every byte.",
        parser=values.path("--check", "the path of a file of evidence"),
    ),
]


def evidence(
    app: Application,
    image: MaybeImage = None,
    *,
    restore: Receipts = None,
    planned: Planned = None,
    target: Targets = None,
    output: Output = None,
    check: Check = None,
) -> int:
    """Write down what is known of an image and its restores, and what is not.

    One JSON file with digests, hosts, gates, times and outcomes, failed attempts too. All that
    this host has recorded of the image is in it. Ends with exit status 12 if what is told does
    not hold, or is not all that was planned.
    """
    if check is not None:
        if restore or target or planned is not None:
            raise UsageError(
                "--check: a file says by itself what was planned, and which attempts it tells of",
                hint="Leave out --restore, --planned and --target.",
            )
        from gpuckpt.flow.evidence.check import check as examine

        return app.show(checked(examine(check, image, app.state_dir, app.reporter, app.interrupts)))
    if image is None:
        raise UsageError("no IMAGE given", hint="`gpuckpt evidence --help` shows what is possible.")
    from gpuckpt.flow.evidence.check import Checked, judge
    from gpuckpt.flow.evidence.make import EvidenceRequest, write

    request = EvidenceRequest(
        image=image,
        receipts=tuple(restore or ()),
        planned=planned,
        targets=tuple(map(_pair, target or ())),
        output=output,
    )
    path, data = write(request, app.state_dir, Path.cwd())
    found, findings = judge(data)
    return app.show(outcome(Checked(path, found, tuple(findings)), "evidence written"))


def checked(result: Checked) -> Outcome:
    """Say whether a file holds what it says."""
    return outcome(result, "the evidence holds")


def outcome(result: Checked, title: str) -> Outcome:
    """Lay out what the evidence comes to; what does not hold is an error beside it."""
    found = result.evidence
    rows = [("file", str(result.path))]
    tables: tuple[Table, ...] = ()
    if found is not None:
        rows += _summary(found)
        tables = (_statements("PROVED", found.proved), _statements("NOT PROVED", found.not_proved))
    if result.bytes is not None:
        rows.append(("read", f"{units.size(result.bytes)} of the image"))
    error = _error(result.path, result.findings) if result.findings else None
    payload = {
        "path": result.path,
        "holds": error is None,
        "bytes": result.bytes,
        "findings": result.findings,
        "evidence": found,
    }
    tone = Tone.GOOD if error is None else Tone.BAD
    page = Page(title if error is None else error.message, tone, (Fields(tuple(rows)), *tables))
    if error is not None:
        page = Page(page.title, tone, (*page.blocks, Findings(result.findings)))
    return Outcome(payload, page, quiet=str(result.path), error=error)


def _error(path: Path, findings: tuple[Finding, ...]) -> EvidenceFlawed:
    what = units.count(len(findings), "flaw")
    return EvidenceFlawed(f"the evidence does not hold: {what} in {path}", findings=findings)


def _summary(found: Evidence) -> list[tuple[str, str]]:
    attempts = ", ".join(f"{one.id} {one.outcome}" for one in found.attempts)
    rows = [
        ("image", f"{found.image.image_id}, {units.size(found.image.raw)} raw"),
        ("digest", f"{found.image.tables} over all tables"),
        ("before", found.before.hostname),
        ("attempts", attempts),
    ]
    for one in found.targets:
        length = "has no end" if one.measured is None else units.seconds(one.measured)
        met = {None: "not told", True: "met", False: "not met"}[one.met]
        at_most = units.seconds(one.at_most)
        rows.append((f"{one.attempt} {one.interval}", f"{length}, at most {at_most}: {met}"))
    return rows


def _statements(heading: str, told: tuple[Statement, ...]) -> Table:
    rows = tuple((one.about, one.what, one.text) for one in told)
    return Table("", ("OF", heading, ""), rows)
