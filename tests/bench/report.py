"""All tables of a run, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.contents import KINDS
from tests.bench.growth import Line, growth_table
from tests.bench.machine import told
from tests.bench.results import SYNCED, Group, Rows, Spread, spreads
from tests.bench.table import TIMES, costs, markdown, seconds, short, times
from tests.bench.targets import verdict_table, verdicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.bench.results import Step

APART = ("growth", "start-up")
SHORT = ("dump.still", "pause.still", "warm.seconds", "warm.works")
BASES = ("criu", "criu-tmpfs", "gpuckpt")
TITLES = {
    "criu": "criu to disk",
    "criu-tmpfs": "criu to tmpfs",
    "zstd": "criu, tar, zstd -1 -T0, sha256sum",
    "lz4": "criu, tar, lz4",
}
GROWTH = {
    "dump.still": "stands still",
    "dump.seconds": "dump",
    "warm.seconds": "restore",
    "warm.works": "works again",
}


def report(about: dict[str, str], steps: Iterable[Step], failed: Iterable[str]) -> str:
    """Return the tables of all that was measured, and a word on what could not be."""
    found = spreads(steps)
    parts = [f"Measured on: {told(about)}.", LEGEND]
    parts += [f"**Not measured**: {one}." for one in failed]
    if jobs := {group: rows for group, rows in found.items() if group.case not in APART}:
        parts.append(f"### In short, medians\n\n{_short(jobs)}")
    for group, rows in found.items():
        if group.case not in APART:
            parts.append(_group(group, rows))
    if growth := _growth(found):
        parts.append(f"### Growth, bf16, 1 process, seconds\n\n{growth}")
    for group, rows in found.items():
        if group.case == "start-up":
            parts.append(f"### Start-up, seconds\n\n{_startup(rows)}")
    if promises := verdicts(found):
        parts.append(f"### Targets\n\n{verdict_table(promises)}")
    return "\n\n".join(parts)


LEGEND = """\
Seconds: median (smallest-largest) ratio to the first row of bare CRIU. *stands still*: from the
job's last sign of life until its image is complete (others than gpuckpt: until the command ends);
*works again*: from the start of the restore to the first sign of life; *cold*: the image not in
the page cache. gpuckpt's images are on the disk when it says so, all others only where *synced* is
said. CPU seconds and memory are of the whole command; *MiB* is the command's first process, the
*largest process* any that it started. After every restore the job's memory had the same digest as
before."""


def _short(found: Mapping[Group, Rows]) -> str:
    """Return one table of all jobs, a column for each way."""
    ways = list(dict.fromkeys(way for rows in found.values() for way in rows))
    cells = []
    for group, rows in found.items():
        against = rows.get(_base(rows), {})
        for name in SHORT:
            if any(name in row for row in rows.values()):
                of = [short(rows.get(way, {}).get(name), against.get(name)) for way in ways]
                cells.append([_job(group), TIMES[name], *of])
    return markdown(["job", "seconds", *map(_title, ways)], cells)


def _base(rows: Rows) -> str:
    return next((name for name in BASES if name in rows), "")


def _job(group: Group) -> str:
    kind = KINDS.get(group.case, f"{group.case}, PyTorch and AdamW")
    number = "" if group.processes == 1 else f", {group.processes} processes"
    return f"{group.mebibytes / 1024:.3g} GiB, {kind}{number}"


def _group(group: Group, rows: Rows) -> str:
    named = {_title(way): row for way, row in rows.items()}
    lines = [f"### {_job(group)}", times(named, _title(_base(rows)))]
    lines.append(costs({name: row for name, row in named.items() if not name.endswith(SYNCED)}))
    if group.case.startswith("training"):
        lines.append(_parts(named))
    if verified := _verified(rows):
        lines.append(verified)
    return "\n\n".join(lines)


def _title(way: str) -> str:
    base = way.removesuffix(SYNCED)
    return TITLES.get(base, base) + way[len(base) :]


def _parts(rows: Rows) -> str:
    """Return the parts of dump and restore, by way."""
    cells = []
    for way, row in rows.items():
        for step in ("dump", "warm"):
            parts = {
                name.removeprefix(f"{step}.part "): spread.middle
                for name, spread in row.items()
                if name.startswith(f"{step}.part ")
            }
            if parts and not way.endswith(SYNCED):
                text = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
                cells.append([way, "dump" if step == "dump" else "restore", text])
    return markdown(["way", "step", "parts"], cells)


def _verified(rows: Rows) -> str:
    row = rows.get("gpuckpt", {})
    names = {"verify": "verify", "verify cold": "verify, cold", "read cold": "cat, cold"}
    told = [
        f"{title} {seconds(row[f'{name}.seconds'])}"
        for name, title in names.items()
        if f"{name}.seconds" in row
    ]
    return f"Reading the image of gpuckpt, s: {'; '.join(told)}." if told else ""


def _growth(found: Mapping[Group, Rows]) -> str:
    rows = {
        group.mebibytes / 1024: rows["gpuckpt"]
        for group, rows in sorted(found.items())
        if group.case == "growth"
    }
    lines = dict(_lines(rows))
    return growth_table(lines) if lines else ""


def _lines(rows: Mapping[float, Mapping[str, Spread]]) -> Iterator[tuple[str, Line]]:
    for name, title in GROWTH.items():
        points = {size: row[name].middle for size, row in rows.items() if name in row}
        if len(points) > 1:
            yield title, Line.through(points)


def _startup(rows: Rows) -> str:
    row = rows["gpuckpt"]
    names = [name for name in row if name.endswith(".seconds")]
    cells = [[f"gpuckpt {name.removesuffix('.seconds')}", seconds(row[name])] for name in names]
    return markdown(["command", "seconds"], cells)
