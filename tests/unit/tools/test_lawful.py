"""What may differ in a restored task, and nothing beside it."""

from __future__ import annotations

import ctypes
import struct

from gpuckpt.tools.criumemory import Area, Rseq
from gpuckpt.tools.lawful import Laws, _own_vdso
from gpuckpt.tools.pagemap import PAGE

BASE = 0x7F0000000000


def area(**what: bool) -> Area:
    kinds = {"vdso": False, "aio": False, "droppable": False}
    return Area(BASE, BASE + 2 * PAGE, shared=0, memfd=0, **(kinds | what))


def changed(page: bytes, *places: int) -> bytes:
    found = bytearray(page)
    for at in places:
        found[at] ^= 0xFF
    return bytes(found)


def test_a_page_that_no_law_is_about_may_not_differ() -> None:
    page = bytes(PAGE)
    laws = Laws([area(vdso=True)], [Rseq(BASE + 5 * PAGE, 32)])
    assert laws.explain(BASE + 4 * PAGE, page, changed(page, 7)) is None


def test_the_kernel_writes_where_a_thread_stands() -> None:
    page, at = bytes(range(256)) * 16, 0x120
    laws = Laws([], [Rseq(BASE + at, 32)])
    cpus = changed(page, at, at + 4, at + 20, at + 24)
    assert laws.explain(BASE, page, cpus) == {"rseq": 4}
    for beside in (at - 1, at + 16, at + 19, at + 28, at + 32):
        assert laws.explain(BASE, page, changed(cpus, beside)) is None, beside


def test_a_critical_section_may_be_cleared_and_nothing_else() -> None:
    at = 0x120
    was = bytearray(PAGE)
    was[at + 8 : at + 16] = struct.pack("<Q", BASE)
    laws = Laws([], [Rseq(BASE + at, 32)])
    assert laws.explain(BASE, bytes(was), bytes(PAGE)) == {"rseq": 1}
    assert laws.explain(BASE, bytes(was), changed(bytes(was), at + 9)) is None


def test_an_area_at_the_end_of_a_page_goes_on_in_the_next() -> None:
    laws = Laws([], [Rseq(BASE + PAGE - 4, 32)])
    page = bytes(PAGE)
    assert laws.explain(BASE, page, changed(page, PAGE - 1)) == {"rseq": 1}
    assert laws.explain(BASE + PAGE, page, changed(page, 0, 16)) == {"rseq": 2}
    assert laws.explain(BASE + PAGE, page, changed(page, 13)) is None


def test_a_ring_has_another_number() -> None:
    page, laws = bytes(PAGE), Laws([area(aio=True)])
    assert laws.explain(BASE, page, changed(page, 0)) == {"aio": 1}
    assert laws.explain(BASE, page, changed(page, 4)) is None
    assert laws.explain(BASE + PAGE, page, changed(page, 0)) is None


def test_what_the_kernel_may_drop_is_there_or_all_zeros() -> None:
    page, laws = changed(bytes(PAGE), 1, 2), Laws([area(droppable=True)])
    assert laws.explain(BASE, page, bytes(PAGE)) == {"droppable": 2}
    assert laws.explain(BASE, page, changed(page, 9)) is None


def test_the_vdso_is_this_kernels_or_leads_to_it() -> None:
    laws, other = Laws([area(vdso=True)]), changed(bytes(PAGE), *range(100))
    own = _own_vdso()[:PAGE]
    assert len(own) == PAGE
    assert laws.explain(BASE, other, own) is not None
    jump = b"\x48\xb8" + struct.pack("<Q", BASE) + b"\xff\xe0" + b"\xcc" * 4
    led = other[:64] + jump + other[64 + len(jump) :]
    assert laws.explain(BASE, other, led) == {"vdso": len(jump) - 1}  # one is ff before
    assert laws.explain(BASE, other, changed(led, 200)) is None
    assert laws.explain(BASE, other, other[:64] + changed(jump, 15) + other[80:]) is None


def test_behind_the_end_of_a_file_nobody_reads() -> None:
    laws, page = Laws(end=0x1010), bytes(PAGE)
    assert laws.explain(0x1000, changed(page, 0x10, 0xFFF), page) == {"behind-end": 2}
    assert laws.explain(0x1000, changed(page, 0xF), page) is None
    assert laws.explain(0, changed(page, 0x20), page) is None


def test_the_own_vdso_is_code() -> None:
    assert _own_vdso()[:4] == b"\x7fELF"
    assert ctypes.sizeof(ctypes.c_void_p) == 8
