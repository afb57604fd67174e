"""Reading the memory of a process: many places at once, hidden ones, and those that are not."""

from __future__ import annotations

import ctypes
import mmap
import os
from itertools import pairwise
from pathlib import Path

import pytest

from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.taskmemory import Memories, parse

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PROC = Memories(Path("/proc"))


def test_many_places_with_one_call() -> None:
    memory = mmap.mmap(-1, 4096 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in range(0, 4096, 2):
        memory[page * PAGE : page * PAGE + 8] = page.to_bytes(8, "little")
    task = PROC.task(os.getpid())
    view = memoryview(bytearray(2048 * 8))
    places = [(base + page * PAGE, 8) for page in range(0, 4096, 2)]
    assert task.fill(view, places) == len(view)
    task.close()
    found = [int.from_bytes(view[at : at + 8], "little") for at in range(0, len(view), 8)]
    assert found == list(range(0, 4096, 2))


def test_what_a_process_may_not_read_itself_is_read_and_what_is_not_there_ends_it() -> None:
    memory = mmap.mmap(-1, 4 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[:] = os.urandom(4 * PAGE)
    assert not LIBC.mprotect(base + PAGE, PAGE, 0)
    task, view = PROC.task(os.getpid()), memoryview(bytearray(5 * PAGE))
    try:
        whole = [(base + 2 * PAGE, PAGE), (base, 3 * PAGE), (8, PAGE)]
        assert task.fill(view, whole) == 4 * PAGE
    finally:
        task.close()
        LIBC.mprotect(base + PAGE, PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
    assert view[: 4 * PAGE] == memory[2 * PAGE : 3 * PAGE] + memory[: 3 * PAGE]


def test_shared_memory_ends_with_a_page_of_zeros() -> None:
    fd = os.memfd_create("test")
    data = os.urandom(PAGE + 100)
    os.write(fd, data)
    shared, view = PROC.opened(os.getpid(), fd), memoryview(bytearray(b"x" * 4 * PAGE))
    try:
        assert shared.end == len(data)
        assert shared.fill(view, [(0, PAGE), (PAGE, PAGE), (2 * PAGE, PAGE)]) == 2 * PAGE
    finally:
        shared.close()
        os.close(fd)
    assert view[: 2 * PAGE] == data + bytes(PAGE - 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="map_files is closed to others")
def test_shared_memory_is_found_behind_its_mapping() -> None:
    with mmap.mmap(-1, 3 * PAGE) as memory:
        memory[PAGE : 2 * PAGE] = data = os.urandom(PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        mapping = next(one for one in PROC.mappings(os.getpid()) if one.start == base)
        shared, view = PROC.mapped(os.getpid(), mapping), memoryview(bytearray(PAGE))
        assert shared.fill(view, [(PAGE, PAGE)]) == PAGE
        shared.close()
        assert view == data


def test_a_process_that_is_gone_has_nothing_mapped() -> None:
    assert PROC.mappings(1 << 22) == ()
    with pytest.raises(OSError, match="No such file"):
        PROC.task(1 << 22)


def test_a_maps_file() -> None:
    raw = (
        b"7f00-8000 r-xp 00001000 fe:00 12 /usr/lib/a file (deleted)\n"
        b"8000-9000 rw-p 00000000 00:00 0 \n"
    )
    named, plain = parse(raw)
    assert (named.start, named.end, named.words) == (
        0x7F00,
        0x8000,
        "r-xp /usr/lib/a file (deleted)",
    )
    assert plain.words == "rw-p anonymous"


@pytest.mark.parametrize("regions", [400, 600, 1500, 5000])
def test_populated_memory_is_told_once_and_in_order_however_many_regions(regions: int) -> None:
    """Linux tells of a scan that it ended before what it has told, when that was more than 512."""
    memory = mmap.mmap(-1, 2 * regions * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in range(0, 2 * regions, 2):
        memory[page * PAGE] = 1
    try:
        found = PROC.populated(os.getpid())
    except OSError as why:
        pytest.skip(f"PAGEMAP_SCAN is not there: {why.strerror}")
    assert all(before[1] < after[0] for before, after in pairwise(found))
    ours = [one for one in found if base <= one[0] < base + len(memory)]
    written = range(base, base + len(memory), 2 * PAGE)
    assert [start for start, _ in ours if start in written] == list(written)
