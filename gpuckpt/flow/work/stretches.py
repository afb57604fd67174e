"""Rows of stretches of memory, each by its start and end, in the order of addresses."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Stretch = tuple[int, int]


def size(row: Iterable[Stretch]) -> int:
    """Return how many bytes a row has."""
    return sum(end - start for start, end in row)


def touches(one: Stretch, row: Sequence[Stretch]) -> bool:
    """Whether a stretch has anything in common with one of a row."""
    at = bisect_left(row, one[1], key=lambda other: other[0]) - 1
    return at >= 0 and row[at][1] > one[0]


def inside(one: Stretch, row: Sequence[Stretch]) -> bool:
    """Whether all of a stretch is in one of a row."""
    at = bisect_left(row, one[0] + 1, key=lambda other: other[0]) - 1
    return at >= 0 and row[at][1] >= one[1]


def minus(row: Iterable[Stretch], without: Sequence[Stretch]) -> list[Stretch]:
    """Return what of a row is in no stretch of another."""
    found, number = [], 0
    for start, end in row:
        at = start
        while number < len(without) and without[number][1] <= at:
            number += 1
        here = number
        while here < len(without) and without[here][0] < end:
            if without[here][0] > at:
                found.append((at, without[here][0]))
            at = max(at, without[here][1])
            here += 1
        if at < end:
            found.append((at, end))
    return found


def common(row: Sequence[Stretch], other: Sequence[Stretch]) -> list[Stretch]:
    """Return what of a row is in another as well."""
    return minus(row, minus(row, other))
