"""A job that has every kind of memory. Usage: memory.py FOLDER.

FOLDER/log gets a line each time that all of it was read and was as it should be; FOLDER/kinds names
what this host allows, FOLDER/places where some of it is. There are threads and a forked child.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path

PAGE = 4096
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.mprotect.argtypes = LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PRIVATE, SHARED, DROPPABLE, ANONYMOUS, HUGETLB = 0x02, 0x01, 0x08, 0x20, 0x40000
READ, WRITE = 1, 2
GUARD_INSTALL = 102

found: list[str] = []
checks: list[tuple[int, int, bytes]] = []
places: dict[str, int] = {}


def area(size: int, flags: int = PRIVATE | ANONYMOUS, fd: int = -1, offset: int = 0) -> int:
    """Map memory; 0 if this host has no such memory."""
    address = LIBC.mmap(None, size, READ | WRITE, flags, fd, offset)
    return 0 if address in {None, ctypes.c_void_p(-1).value} else int(address)


def fill(address: int, size: int, seed: int) -> None:
    """Write bytes that no other place has, and remember them."""
    ctypes.memmove(address, hashlib.shake_128(seed.to_bytes(4, "little")).digest(size), size)
    remember(address, size)


def remember(address: int, size: int) -> None:
    checks.append((address, size, hashlib.sha256(ctypes.string_at(address, size)).digest()))


def anonymous() -> None:
    """Private memory: sparse, huge, locked, hidden, guarded, in thousands of pieces."""
    sparse = area(64 * PAGE)
    for page in range(0, 64, 3):
        fill(sparse + page * PAGE, PAGE, page)
    places["empty"] = sparse + PAGE + 5
    huge = area(6 << 20)
    LIBC.madvise(huge, 6 << 20, mmap.MADV_HUGEPAGE)
    fill(huge + (1 << 20), 3 << 20, 100)
    places["private"] = huge + (2 << 20) + 33
    hidden = area(8 * PAGE)
    ctypes.memmove(hidden, os.urandom(4 * PAGE), 4 * PAGE)
    LIBC.mprotect(hidden, 8 * PAGE, 0)
    blind = area(4 * PAGE)
    ctypes.memmove(blind, os.urandom(PAGE), PAGE)
    LIBC.mprotect(blind, 4 * PAGE, WRITE)
    guarded = area(8 * PAGE)
    fill(guarded, 2 * PAGE, 101)
    if not LIBC.madvise(guarded + 4 * PAGE, PAGE, GUARD_INSTALL):
        found.append("guard")
    pieces = area(2000 * PAGE)
    for page in range(2000):
        ctypes.memmove(pieces + page * PAGE, page.to_bytes(8, "little"), 8)
        if page % 2:
            LIBC.mprotect(pieces + page * PAGE, PAGE, READ)
    remember(pieces, 2000 * PAGE)
    for advice in (mmap.MADV_DONTFORK, 18):  # the other one is MADV_WIPEONFORK
        kept = area(4 * PAGE)
        LIBC.madvise(kept, 4 * PAGE, advice)
        if advice == mmap.MADV_DONTFORK:
            fill(kept, 4 * PAGE, 102)
    zero = os.open("/dev/zero", os.O_RDWR)
    fill(area(4 * PAGE, PRIVATE, zero), 4 * PAGE, 103)
    if droppable := area(4 * PAGE, DROPPABLE | ANONYMOUS):
        ctypes.memmove(droppable, os.urandom(2 * PAGE), 2 * PAGE)
        found.append("droppable")
    if huge := area(2 << 20, SHARED | ANONYMOUS | HUGETLB):
        fill(huge, 2 << 20, 104)
        found.append("hugetlb")


def shared(folder: Path) -> None:
    """Memory that several may see: anonymous, memfd, files."""
    whole = area(1 << 20, SHARED | ANONYMOUS)
    fill(whole, 300_000, 200)
    LIBC.munmap(ctypes.c_void_p(whole), 8 * PAGE)
    del checks[-1]
    remember(whole + 8 * PAGE, 200_000)
    zero = os.open("/dev/zero", os.O_RDWR)
    fill(area(8 * PAGE, SHARED, zero), 8 * PAGE, 201)
    held = os.memfd_create("held", 0)
    os.write(held, os.urandom(100_000))
    mapped = os.memfd_create("mapped", 0)
    os.ftruncate(mapped, 1 << 20)
    fill(area(1 << 20, SHARED, mapped), 500_000, 202)
    places["shared"] = checks[-1][0] + 4 * PAGE + 9
    os.close(mapped)
    both = os.memfd_create("both", 0)
    os.ftruncate(both, 1 << 20)
    fill(area(256 << 10, SHARED, both, 512 << 10), 256 << 10, 203)
    fill(area(64 << 10, PRIVATE, both), 10_000, 204)
    path = folder / "file"
    path.write_bytes(os.urandom(64 << 10))
    fd = os.open(path, os.O_RDWR)
    fill(area(64 << 10, SHARED, fd), 64 << 10, 205)
    fill(area(64 << 10, PRIVATE, fd) + 5 * PAGE, 3 * PAGE, 206)
    locked = LIBC.mmap(None, 15 * PAGE, READ, PRIVATE, fd, PAGE)
    LIBC.mlock(ctypes.c_void_p(locked), 15 * PAGE)  # CRIU leaves copies though nobody wrote to it


def rings() -> None:
    """A ring for asynchronous I/O, which the kernel has given a number."""
    first, second = ctypes.c_ulong(0), ctypes.c_ulong(0)
    if not any(LIBC.syscall(206, 16, ctypes.byref(one)) for one in (first, second)):
        LIBC.syscall(207, first)  # the other one keeps its number, and gets another at a restore
        found.append("aio")


def wait() -> None:
    local = os.urandom(1000)
    while local:
        time.sleep(0.05)


def main(folder: Path) -> None:
    for _ in range(4):
        threading.Thread(target=wait, daemon=True).start()
    anonymous()
    shared(folder)
    rings()
    (folder / "kinds").write_text(" ".join(found))
    (folder / "places").write_text(json.dumps(places))
    if not os.fork():
        fill(area(3 << 20), 3 << 20, 300)
        wait()
    while True:
        for address, size, digest in checks:
            assert hashlib.sha256(ctypes.string_at(address, size)).digest() == digest, hex(address)
        with (folder / "log").open("a") as log:
            log.write("as it should be\n")
        time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
