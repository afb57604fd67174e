"""Which memory is new, and which copies have come again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuckpt.flow.gpu.copies import Copy, _arenas, _inside, _minus, _touches, _unmatched
from gpuckpt.tools.taskmemory import Mapping

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
def test_stretches_without_others(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    from_, without = row(one), row(two)
    found = _minus(from_, without)
    assert points(found) == points(from_) - points(without)
    assert found == sorted(found)
    assert all(start < end for start, end in found)


@given(ROWS, st.integers(0, 60), st.integers(1, 9))
def test_where_a_stretch_lies(gaps: list[tuple[int, int]], start: int, length: int) -> None:
    others = row(gaps)
    mine = set(range(start, start + length))
    assert _touches((start, start + length), tuple(others)) == bool(mine & points(others))
    within = any(one <= start and start + length <= end for one, end in others)
    assert _inside(Copy(1, start, start + length, ()), tuple(others)) == within


def test_a_copy_is_found_once_wherever_it_is() -> None:
    def copy(start: int, *digests: bytes) -> Copy:
        return Copy(7, start, start + 100 * len(digests), digests)

    wanted = [copy(0, b"a", b"b"), copy(1000, b"c"), copy(2000, b"c")]
    assert not _unmatched(wanted, [copy(9000, b"c"), copy(5000, b"c"), copy(7000, b"a", b"b")])
    assert _unmatched(wanted, [copy(5000, b"c"), copy(7000, b"a", b"x")]) == [wanted[0], wanted[2]]
    unreadable = [copy(0, b"")]
    assert _unmatched(unreadable, unreadable) == unreadable


def test_arenas_of_malloc_are_known_by_their_shape() -> None:
    base, size = 0x7F0000000000, 64 << 20
    arena = Mapping(base, base + 0x21000, "rw-p", "")
    rest = Mapping(base + 0x21000, base + size, "---p", "")
    assert _arenas((arena, rest)) == [(base, base + 0x21000)]
    assert not _arenas((arena, Mapping(base + 0x21000, base + size + 4096, "---p", "")))
    assert not _arenas((arena, Mapping(base + 0x22000, base + size, "---p", "")))
    assert not _arenas((Mapping(base, base + 0x21000, "rw-p", "[heap]"), rest))
