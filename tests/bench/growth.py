"""Whether time grows with size as a straight line."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import linear_regression
from typing import TYPE_CHECKING

from tests.bench.table import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Line:
    """A line through points: seconds over GiB, and how far off the worst of them is."""

    slope: float
    intercept: float
    points: dict[float, float]

    @staticmethod
    def through(points: Mapping[float, float]) -> Line:
        """Fit a line by least squares; it takes two points."""
        sizes, seconds = list(points), list(points.values())
        slope, intercept = linear_regression(sizes, seconds)
        return Line(slope, intercept, dict(points))

    def at(self, size: float) -> float:
        """Return what the line says."""
        return self.intercept + self.slope * size

    @property
    def worst(self) -> tuple[float, float, float]:
        """The size that is furthest off, by how many seconds, and by which share of the line."""
        size = max(self.points, key=lambda one: abs(self.points[one] - self.at(one)))
        off = self.points[size] - self.at(size)
        return size, off, off / self.at(size)


def growth_table(lines: Mapping[str, Line]) -> str:
    """Return lines by what was measured, as Markdown."""
    sizes = sorted({size for line in lines.values() for size in line.points})
    head = ["", *(f"{size:g} GiB" for size in sizes), "s per GiB", "s at 0", "worst deviation"]
    rows = []
    for name, line in lines.items():
        size, off, share = line.worst
        cells = [f"{line.points[one]:.2f}" if one in line.points else "" for one in sizes]
        worst = f"{off:+.2f} s ({share:+.0%}) at {size:g} GiB"
        rows.append([name, *cells, f"{line.slope:.2f}", f"{line.intercept:.2f}", worst])
    return markdown(head, rows)
