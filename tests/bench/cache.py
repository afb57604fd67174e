"""The page cache before a measurement: an image's files all in it, or none of them."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CHUNK: Final = 4 << 20
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def warm(files: Iterable[Path]) -> None:
    """Read files to their ends."""
    buffer = bytearray(CHUNK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(files: Iterable[Path]) -> None:
    """Take files out of the page cache; programs and libraries stay in."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not on the disk yet stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(files: Iterable[Path]) -> float:
    """Return which share of some files is in the page cache. It reads nothing by looking."""
    there = pages = 0
    for path in files:
        if size := path.stat().st_size:
            found = _residence(path, size)
            there += sum(one & 1 for one in found)
            pages += len(found)
    return there / pages if pages else 0.0


def _residence(path: Path, size: int) -> bytes:
    """Ask the kernel for a byte a page."""
    found = (ctypes.c_char * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
        first = ctypes.c_char.from_buffer(view)
        failed = _LIBC.mincore(ctypes.addressof(first), size, found)
        del first  # or the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return bytes(found)
