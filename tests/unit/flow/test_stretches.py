"""Rows of stretches are what the sets of their addresses are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuckpt.flow.work.stretches import common, inside, minus, size, touches

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=10)


def row(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, at = [], 0
    for gap, length in gaps:
        found.append((at + gap, at + gap + length))
        at += gap + length
    return found


def points(stretches: list[tuple[int, int]]) -> set[int]:
    return {at for start, end in stretches for at in range(start, end)}


@given(ROWS, ROWS)
def test_two_rows(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    first, second = row(one), row(two)
    assert size(first) == len(points(first))
    for found, expected in (
        (minus(first, second), points(first) - points(second)),
        (common(first, second), points(first) & points(second)),
    ):
        assert points(found) == expected
        assert found == sorted(found)
        assert all(start < end for start, end in found)


@given(ROWS, st.integers(0, 60), st.integers(1, 9))
def test_a_stretch_and_a_row(gaps: list[tuple[int, int]], start: int, length: int) -> None:
    others, one = row(gaps), (start, start + length)
    assert touches(one, others) == bool(points([one]) & points(others))
    within = any(begin <= start and start + length <= end for begin, end in others)
    assert inside(one, others) == within
