"""What the project promises of its speed, and whether this run keeps it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tests.bench.table import markdown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.bench.results import Group, Rows

MIB = 1 << 20


class Verdict(NamedTuple):
    """One promise: `value` may be `limit` at most, or at least if `more`."""

    what: str
    value: float
    limit: float
    more: bool = False

    @property
    def kept(self) -> bool:
        """Whether it is kept."""
        return self.value >= self.limit if self.more else self.value <= self.limit


def verdicts(found: Mapping[Group, Rows]) -> list[Verdict]:
    """Return every promise that this run can say something about."""
    told: list[Verdict] = []
    for group, rows in found.items():
        label = f"{group.case}, {group.mebibytes} MiB, {group.processes} process"
        if group.case == "bf16" and group.processes == 1:
            told += _disk(label, rows)
        elif group.case.startswith("training"):
            told += _gpu(label, rows)
        elif group.case == "start-up":
            for name, spread in rows["gpuckpt"].items():
                command, _, what = name.rpartition(".")
                if what == "seconds":
                    told.append(Verdict(f"gpuckpt {command}, s", spread.middle, 0.4))
    return told


def _disk(label: str, rows: Rows) -> Iterator[Verdict]:
    ratios = (
        ("stands still / criu to disk", "gpuckpt", "criu", "dump.still", 1.1, False),
        ("restore / criu restore", "gpuckpt", "criu", "warm.seconds", 1.2, False),
        ("criu, tar, zstd, sha256sum / dump", "zstd", "gpuckpt", "dump.seconds", 2.5, True),
        ("sha256sum, zstd, tar, criu / restore", "zstd", "gpuckpt", "warm.seconds", 2.0, True),
    )
    yield from _ratios(label, rows, ratios)
    for step in ("dump", "warm"):
        if f"{step}.own" in rows.get("gpuckpt", {}):
            memory = rows["gpuckpt"][f"{step}.own"].middle / MIB
            yield Verdict(f"{label}: memory of gpuckpt {step}, MiB", memory, 300)
    yield from _verify(label, rows)


def _verify(label: str, rows: Rows) -> Iterator[Verdict]:
    """Compare a cold verify with plain reading, or with all cores at work, whichever is longer."""
    row = rows.get("gpuckpt", {})
    if "verify cold.seconds" in row and "read cold.seconds" in row:
        cores = row["verify.cpu"].middle / (os.cpu_count() or 1)
        least = max(row["read cold.seconds"].middle, cores)
        ratio = row["verify cold.seconds"].middle / least
        yield Verdict(f"{label}: verify / reading or all cores", ratio, 1.2)


def _gpu(label: str, rows: Rows) -> Iterator[Verdict]:
    for ours in ("gpuckpt", "gpuckpt-tmpfs"):
        ratios = (
            (f"{ours} dump / driver, criu to tmpfs", ours, "criu-tmpfs", "dump.still", 1.05, False),
            (f"{ours} restore / criu, driver", ours, "criu-tmpfs", "warm.seconds", 1.1, False),
            (f"{ours} pause / the same, bare", ours, "criu-tmpfs", "pause.still", 1.05, False),
        )
        yield from _ratios(label, rows, ratios)


def _ratios(
    label: str, rows: Rows, ratios: tuple[tuple[str, str, str, str, float, bool], ...]
) -> Iterator[Verdict]:
    for what, way, base, name, limit, more in ratios:
        if name in rows.get(way, {}) and name in rows.get(base, {}):
            ratio = rows[way][name].middle / rows[base][name].middle
            yield Verdict(f"{label}: {what}", ratio, limit, more)


def verdict_table(told: list[Verdict]) -> str:
    """Return the promises as Markdown."""
    return markdown(
        ["target", "measured", "wanted", ""],
        [
            [
                one.what,
                f"{one.value:.2f}",
                f"{'>=' if one.more else '<='} {one.limit:g}",
                "kept" if one.kept else "MISSED",
            ]
            for one in told
        ],
    )
