"""Which memory each byte of a pages image is of."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuckpt.errors import ImageDamaged
from gpuckpt.tools.pagemap import PAGE, Runs, read_pagemap
from tests.fakes.criuimages import IMAGE, PAGEMAP, _field, _record

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYOUTS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=12)
CUTS = st.lists(st.integers(1, 9), max_size=12)


def layout(gaps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches with these gaps before them; some follow each other without one."""
    found, address = [], 0
    for gap, length in gaps:
        found.append((address + gap, length))
        address += gap + length
    return found


@given(LAYOUTS, CUTS)
def test_every_byte_has_its_address_however_frames_are_cut(
    gaps: list[tuple[int, int]], cuts: list[int]
) -> None:
    stretches = layout(gaps)
    expected = [at for start, length in stretches for at in range(start, start + length)]
    runs = Runs(stretches)
    assert runs.size == len(expected)
    found, start = [], 0
    for size in (*cuts, runs.size):
        for run in runs.within(start, start + size):
            assert run.offset == len(found)
            assert run.length > 0
            found += range(run.address, run.address + run.length)
        start = min(start + size, runs.size)
    assert found == expected


@given(LAYOUTS)
def test_no_two_runs_could_be_one(gaps: list[tuple[int, int]]) -> None:
    runs = list(Runs(layout(gaps)).within(0, 1 << 30))
    ends = {run.address + run.length for run in runs}
    assert not ends & {run.address for run in runs}


def image(*entries: bytes) -> bytes:
    return struct.pack("<II", IMAGE, PAGEMAP) + b"".join(map(_record, entries))


def test_pages_that_are_in_no_image_are_left_out() -> None:
    raw = image(
        _field(1, 7),
        _field(1, 0x1000) + _field(2, 0) + _field(4, 4) + _field(5, 2),
        _field(1, 0x3000) + _field(2, 0) + _field(4, 6) + _field(5, 1),  # could come later
        _field(1, 0x9000) + _field(2, 0) + _field(4, 1) + _field(5, 3),  # in a parent
        _field(1, 0xF000) + _field(2, 1) + _field(4, 4),  # CRIU 4.1
    )
    pagemap = read_pagemap(raw, "pagemap-9.img")
    assert pagemap.pages == "pages-7.img"
    found = [(run.address, run.length) for run in pagemap.runs.within(0, pagemap.runs.size)]
    assert found == [(0x1000, 3 * PAGE), (0xF000, PAGE)]


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (_field(1, 7), _field(1, 0x1001) + _field(4, 4) + _field(5, 1)),
        (_field(1, 7), _field(1, 0x1000) + _field(4, 4) + _field(5, (1 << 64) - 1)),
    ],
    ids=["empty", "crooked", "endless"],
)
def test_a_forged_pagemap_is_damage(entries: tuple[bytes, ...]) -> None:
    with pytest.raises(ImageDamaged):
        read_pagemap(image(*entries), "pagemap-9.img")
