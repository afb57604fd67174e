"""Which copies of GPU memory have come again, and what is none."""

from __future__ import annotations

from gpuckpt.flow.gpu.copies import Copy, _arenas, _unmatched
from gpuckpt.tools.taskmemory import Mapping


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
