"""The memory that a thread works in: a buffer of its own, and what the C library gives it.

Every buffer costs page faults when it is new (about 2 GB/s on the virtual machines GPU jobs
run on), so buffers are made once and used again, the hottest first.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from contextlib import suppress

_STEP = 1 << 20
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


class Stopped(Exception):
    """The work was stopped from elsewhere; whoever stopped it knows why."""


class Scratch(threading.local):
    """A page-aligned buffer for each thread, made once and as large as ever needed."""

    def __init__(self) -> None:
        """Have none yet."""
        self._view = memoryview(b"")

    def view(self, size: int) -> memoryview:
        """Return `size` bytes that stay this thread's until it asks again."""
        if len(self._view) < size:
            self._view = memoryview(mmap.mmap(-1, -(-size // _STEP) * _STEP, mmap.MAP_PRIVATE))
        return self._view[:size]


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, so that the next frame finds it again.

    zstandard returns every frame in bytes of its own. By default glibc gives those back to the
    kernel again and again (50,000 page faults for 2 GiB unpacked, 9,000 this way), and keeps
    them in a place for each thread (285 MiB with 12 threads, 170 this way).
    """
    with suppress(OSError, AttributeError):  # another C library has no such setting
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_ARENA_MAX, 2)
