"""gpuckpt compat: which images can be restored on which hosts?"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuckpt.cli import describe, gpus, moved, units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import ForceGate, option
from gpuckpt.cli.page import Fields, Findings, Outcome, Page, Paragraph, Table, Tone
from gpuckpt.cli.suggest import images as offered
from gpuckpt.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.cli.page import Block
    from gpuckpt.flow.compat import Candidate, Compat, Fit

_WIDEST = 74  # of a matrix on a narrow terminal
_ANSWERS = {"yes": "yes", "warnings": "with warnings", "no": "no"}
_MARKS = (("yes", Tone.GOOD), ("with warnings", Tone.WARNING), ("no", Tone.BAD))

Images = Annotated[
    list[Location],
    typer.Argument(
        metavar="IMAGE",
        help="The folders or URLs of the images.",
        parser=values.location("IMAGE"),
        autocompletion=offered,
    ),
]
HostFacts = Annotated[
    list[Path] | None,
    option(
        "--host-facts",
        metavar="FILE",
        help="Judge the host that wrote this with `doctor --facts` instead of this one, or all "
        "hosts of a folder of such files. May be given several times.",
        parser=values.path("--host-facts", "the path of a file of `doctor --facts`"),
    ),
]


def compat(
    app: Application,
    image: Images,
    *,
    host_facts: HostFacts = None,
    force_gate: ForceGate = None,
) -> int:
    """Tell which images can be restored on which hosts.

    By the rules of a restore, on this host or on those whose facts are given; nothing is touched.
    What facts cannot tell is named: pids, ports, and files unless `doctor --for` had looked at
    them. With -q only the names of the hosts that take every image, the best first. The exit
    status is 0 if each image has a host, 8 otherwise (7 if the images are to blame).
    """
    from gpuckpt.flow.compat import compat as judge

    sources = tuple(_files(host_facts or ()))
    gates = frozenset(force_gate or ())
    return app.show(outcome(judge(lambda: app.tools, image, sources, gates)))


def _files(given: Iterable[Path]) -> Iterator[Path]:
    """Yield files as they are, and of folders what is in them."""
    for one in given:
        # Path.is_dir would raise where a folder above is closed to us
        folder = os.path.isdir(one)  # noqa: PTH112
        found = sorted(one.glob("*.json")) if folder else [one]
        if not found:
            hint = "Name a file of it, or another folder."
            raise values.refuse("--host-facts", f"{one} holds no *.json", hint)
        yield from found


def outcome(found: Compat) -> Outcome:
    """Answer one question in full, many in a matrix; programs get all of it."""
    alone = len(found.fits) == 1
    blocks = tuple(_full(found.fits[0], found.hosts[0]) if alone else _many(found))
    tone = Tone.BAD if found.homeless else Tone.GOOD
    return Outcome(
        payload={
            "images": found.images,
            "hosts": [_host(one) for one in found.hosts],
            "fits": [_fit(one) for one in found.fits],
            "best": found.taking_all,
            "homeless": found.homeless,
        },
        page=Page(_alone(found.fits[0]) if alone else _verdict(found), tone, blocks),
        quiet="\n".join(found.taking_all),
        error=found.error,
    )


def _alone(fit: Fit) -> str:
    blockers = sum(one.blocks for one in fit.findings)
    if fit.error is not None:
        stop = "stops" if blockers == 1 else "stop"
        return f"{units.count(blockers, 'finding')} {stop} a restore on {fit.host}"
    warnings = len(fit.findings)
    but = f", with {units.count(warnings, 'warning')}" if warnings else ""
    told = ", as far as its facts tell" if fit.not_judged else ""
    return f"this image can be restored on {fit.host}{but}{told}"


def _verdict(found: Compat) -> str:
    if found.error is not None:
        return found.error.message
    hosts = f"{len(found.taking_all)} of {units.count(len(found.hosts), 'host')}"
    if len(found.images) == 1:
        return f"{hosts} can take the image"
    return f"every image has a host; {hosts} can take all {len(found.images)}"


def _full(fit: Fit, host: Candidate) -> Iterator[Block]:
    """Say everything about one image on one host, as its plan does."""
    have = units.size(fit.facts.host.memory_available)
    rows = [
        ("image", str(fit.image)),
        ("job", describe.job(fit.manifest)),
        ("host", fit.host if host.age is None else f"{fit.host}, facts {_age(host.age)}"),
        ("memory", f"{units.size(fit.memory)} needed, {have} available"),
    ]
    yield Fields((*rows, *_unknown((fit,))))
    yield from gpus.table(fit.facts.gpus.places if fit.facts.gpus else ())
    yield from moved.table(fit.identity, with_gpus=False)
    if fit.findings:
        yield Findings(fit.findings)


def _many(found: Compat) -> Iterator[Block]:
    """A matrix if it is one and fits a screen, then why not, a line each."""
    names = _short(found)
    matrix = _matrix(found, names)
    told = found.fits
    if matrix is not None:
        yield matrix
        told = tuple(one for one in told if one.findings)
    if told:
        yield _lines(found, told, names)
    if unknown := tuple(_unknown(found.fits)):
        yield Fields(unknown)
    if len(found.images) > 1 and found.taking_all:
        yield Paragraph(f"all images: {', '.join(found.taking_all)}")


def _unknown(fits: tuple[Fit, ...]) -> Iterator[tuple[str, str]]:
    words = dict.fromkeys(word for one in fits for word in one.not_judged)
    if words:
        yield "not judged", f"{', '.join(words)}: saved facts do not tell"


def _short(found: Compat) -> dict[Location, str]:
    """Name images by the last part of their paths, unless two share it."""
    times = Counter(one.name for one in found.images)
    return {one: one.name if times[one.name] == 1 else str(one) for one in found.images}


def _matrix(found: Compat, names: dict[Location, str]) -> Table | None:
    columns = ("HOST", *names.values())
    rows = tuple(
        (host.name, *(_answer(one) for one in found.of(host.name))) for host in found.hosts
    )
    widths = [max(map(len, cells)) + 2 for cells in zip(columns, *rows, strict=True)]
    single = len(found.hosts) == 1 or len(found.images) == 1
    return None if single or sum(widths) > _WIDEST else Table("", columns, rows, marks=_MARKS)


def _lines(found: Compat, told: tuple[Fit, ...], names: dict[Location, str]) -> Table:
    """One line an answer; a column that says the same in each line is left out."""
    ages = {one.name: one.age for one in found.hosts}
    columns = {
        "HOST": [one.host for one in told],
        "IMAGE": [names[one.image] for one in told],
        "FACTS": [_age(ages[one.host]) for one in told],
        "RESTORE": [_answer(one) for one in told],
        "WHY": [_why(one) for one in told],
    }
    if len(found.hosts) == 1:
        del columns["HOST"], columns["FACTS"]
    if len(found.images) == 1:
        del columns["IMAGE"]
    rows = tuple(zip(*columns.values(), strict=True))
    return Table("", tuple(columns), rows, marks=_MARKS)


def _answer(fit: Fit) -> str:
    return _ANSWERS[fit.verdict]


def _age(seconds: float | None) -> str:
    """Say how old facts are; what is free there may be another thing by now."""
    if seconds is None:
        return "now"
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} old"
    return "new"


def _why(fit: Fit) -> str:
    """Name what stops it; where nothing does, what is only doubtful."""
    stopped = fit.error is not None
    return ", ".join(dict.fromkeys(one.id for one in fit.findings if one.blocks or not stopped))


def _host(one: Candidate) -> dict[str, object]:
    return {"name": one.name, "facts": one.source, "age_seconds": one.age}


def _fit(one: Fit) -> dict[str, object]:
    return {
        "image": one.image,
        "image_id": one.manifest.image_id,
        "host": one.host,
        "can_restore": one.error is None,
        "verdict": one.verdict,
        "error": one.error.name if one.error is not None else None,
        "findings": one.findings,
        "not_judged": one.not_judged,
        "gpus": gpus.payload(one.facts.gpus.places if one.facts.gpus else ()),
        "identity": moved.payload(one.identity),
        "memory_needed": one.memory,
        "memory_available": one.facts.host.memory_available,
    }
