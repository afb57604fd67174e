"""The memory that packing works in: slots with buffers, and a buffer for each thread.

Every buffer costs page faults when it is new (about 2 GB/s on the virtual machines GPU jobs
run on), so buffers are made once and used again, the hottest first.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from contextlib import suppress

_STEP = 1 << 20
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


class Stopped(Exception):
    """The work was stopped from elsewhere; whoever stopped it knows why."""


class Slot:
    """The right to have one frame in memory, with a page-aligned buffer for its raw bytes."""

    __slots__ = ("view",)

    def __init__(self, size: int) -> None:
        """Reserve `size` bytes; the kernel gives them when they are first touched."""
        memory = mmap.mmap(-1, size)
        with suppress(OSError, AttributeError, ValueError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(memory)


class Slots:
    """A fixed number of slots. Whoever waits for one makes `wanted` true for the others."""

    def __init__(self, count: int, size: int) -> None:
        """Allow `count` slots of `size` bytes; none is made before it is needed."""
        self._size = size
        self._unmade = count
        self._free: deque[Slot] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._stopped = False

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a slot right now."""
        return self._waiting > 0

    def take(self) -> Slot:
        """Return a slot, waiting for one if need be.

        Raises:
            Stopped: `stop` was called.
        """
        with self._changed:
            self._waiting += 1
            try:
                while not (slot := self._next()):
                    self._changed.wait()
            finally:
                self._waiting -= 1
            return slot

    def take_spare(self) -> Slot | None:
        """Return a slot if one is free and nobody waits."""
        with self._changed:
            return None if self._waiting else self._next()

    def give(self, slot: Slot) -> None:
        """Give a slot back."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def stop(self) -> None:
        """Let every `take`, waiting or to come, raise Stopped, and let go of what is free."""
        with self._changed:
            self._stopped = True
            self._free.clear()
            self._changed.notify_all()

    def _next(self) -> Slot | None:
        if self._stopped:
            raise Stopped
        if self._free:
            return self._free.pop()
        if self._unmade:
            self._unmade -= 1
            return Slot(self._size)
        return None


class Scratch(threading.local):
    """A page-aligned buffer for each thread, made once and as large as ever needed."""

    def __init__(self) -> None:
        """Have none yet."""
        self._view = memoryview(b"")

    def view(self, size: int) -> memoryview:
        """Return `size` bytes that stay this thread's until it asks again."""
        if len(self._view) < size:
            self._view = memoryview(mmap.mmap(-1, -(-size // _STEP) * _STEP))
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
