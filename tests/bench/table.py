"""Tables in Markdown: medians, their spread, and how they stand to one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.bench.results import Rows, Spread

MIB = 1 << 20
TIMES = {
    "dump.still": "stands still",
    "dump.seconds": "dump",
    "pause.still": "pause, left running",
    "warm.seconds": "restore",
    "warm.works": "works again",
    "cold.seconds": "restore, cold",
}
COSTS = {
    "dump.cpu": ("dump CPU s", 1.0),
    "warm.cpu": ("restore CPU s", 1.0),
    "dump.own": ("dump MiB", MIB),
    "warm.own": ("restore MiB", MIB),
    "dump.peak": ("largest process MiB", MIB),
    "dump.stored": ("stored MiB", MIB),
}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times(rows: Rows, base: str) -> str:
    """Return seconds by way: median, smallest and largest, and the ratio to the base's median."""
    names = [name for name in TIMES if any(name in row for row in rows.values())]
    against = rows.get(base, {})
    return markdown(
        ["way", *(TIMES[name] for name in names)],
        [
            [way, *(_time(row.get(name), against.get(name)) for name in names)]
            for way, row in rows.items()
            if any(name in row for name in names)
        ],
    )


def costs(rows: Rows) -> str:
    """Return what the ways use up, medians."""
    names = [name for name in COSTS if any(name in row for row in rows.values())]
    return markdown(
        ["way", *(COSTS[name][0] for name in names)],
        [
            [way, *(_cost(row.get(name), COSTS[name][1]) for name in names)]
            for way, row in rows.items()
            if any(name in row for name in names)
        ],
    )


def _time(spread: Spread | None, base: Spread | None) -> str:
    return f"{seconds(spread)}{_ratio(spread, base)}" if spread else ""


def short(spread: Spread | None, base: Spread | None) -> str:
    """Return a median without its spread, and how it stands to the base's."""
    return f"{spread.middle:.2f}{_ratio(spread, base)}" if spread else ""


def _ratio(spread: Spread, base: Spread | None) -> str:
    if base is None or base is spread or not base.middle:
        return ""
    return f" {spread.middle / base.middle:.2f}x"


def seconds(spread: Spread) -> str:
    """Return a median, with its spread if there is one."""
    if len(spread.values) == 1:
        return f"{spread.middle:.2f}"
    return f"{spread.middle:.2f} ({min(spread.values):.2f}-{max(spread.values):.2f})"


def _cost(spread: Spread | None, unit: float) -> str:
    if spread is None:
        return ""
    value = spread.middle / unit
    return f"{value:.2f}" if unit == 1 else f"{value:.0f}"
