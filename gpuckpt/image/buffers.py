"""Buffers for frames: made once and used again, the hottest first, all together bounded.

A buffer costs page faults when it is new (about 2 GB/s on the virtual machines GPU jobs run on),
and none when it was used before.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.image.frames import FRAME_SIZE, largest_stored
from gpuckpt.image.memory import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK: Final = 4096  # what a read past the page cache is aligned to
_HUGE: Final = 2 << 20
_WORTH_A_CALL: Final = 32 << 10


def room_for(raw: int) -> int:
    """Return how many bytes hold a frame of `raw` bytes, stored or unpacked, read in blocks."""
    return (largest_stored(raw) + 3 * BLOCK - 1) & -BLOCK


_USUAL: Final = room_for(FRAME_SIZE)


class Buffer:
    """Memory for one frame, page-aligned, of huge pages where there are such."""

    __slots__ = ("_memory", "_start", "size", "view")

    def __init__(self, size: int, memory: mmap.mmap | None = None, start: int = 0) -> None:
        """Reserve `size` bytes; the kernel gives them when they are first touched.

        Or take them from `memory`, where they begin at `start`.
        """
        self.size = size
        if memory is not None:
            self._memory, self._start = memory, start
            self.view = memoryview(memory)[start : start + size]
            return
        # private: huge pages are had for shared memory on few hosts only
        self._memory = mmap.mmap(-1, size + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._start = -address_of(memoryview(self._memory)) % _HUGE
        self.view = memoryview(self._memory)[self._start : self._start + size]
        with suppress(OSError, AttributeError, ValueError):
            self._memory.madvise(mmap.MADV_HUGEPAGE, self._start, size & -_HUGE)

    def renew(self) -> None:
        """Get other pages; whoever else has the old ones, a pipe say, keeps them as they are."""
        self._memory.madvise(mmap.MADV_DONTNEED, self._start, self.size)


class Buffers:
    """Up to `total` bytes of buffers. Whoever waits for one makes `wanted` true for the others.

    `short` is called when somebody begins to wait.
    """

    def __init__(self, total: int) -> None:
        """Allow `total` bytes, or one buffer alone that is larger; none is made yet."""
        self._total = total
        self._made = 0
        self._lent = 0
        self._free: deque[Buffer] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._keeps = True
        self._stopped = False
        self.short: Callable[[], None] = lambda: None

    @property
    def few(self) -> bool:
        """Whether most of them are in use."""
        return self._lent * _USUAL * 4 >= self._total * 3

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a buffer right now."""
        return self._waiting > 0

    def take(self, size: int) -> Buffer:
        """Return a buffer of at least `size` bytes, waiting for one if need be.

        Raises:
            Stopped: `stop` was called.
        """
        with self._changed:
            self._waiting += 1
            try:
                while not (buffer := self._next(size, self._lent == 0)):
                    self.short()
                    self._changed.wait()
            finally:
                self._waiting -= 1
            return buffer

    def take_spare(self, size: int) -> Buffer | None:
        """Return a buffer if there is one to be had and nobody waits."""
        with self._changed:
            return None if self._waiting else self._next(size, False)

    def give(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        with self._changed:
            self._lent -= 1
            if self._keeps:
                self._free.append(buffer)
            else:
                self._made -= buffer.size
            self._changed.notify_all()

    def add(self, buffers: list[Buffer]) -> bool:
        """Take buffers that were made elsewhere, to be lent last; says whether more are wanted."""
        with self._changed:
            self._free.extendleft(buffers)
            self._made += sum(buffer.size for buffer in buffers)
            return not self._stopped

    def shed(self) -> None:
        """Let go of what nobody has, and from now on of whatever is given back."""
        with self._changed:
            self._keeps = False
            self._made -= sum(buffer.size for buffer in self._free)
            self._free.clear()

    def stop(self) -> None:
        """Let every `take`, waiting or to come, raise Stopped."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _next(self, size: int, alone: bool) -> Buffer | None:
        if self._stopped:
            raise Stopped
        buffer = self._used_before(size) or self._new(max(size, _USUAL), alone)
        if buffer:
            self._lent += 1
        return buffer

    def _used_before(self, size: int) -> Buffer | None:
        if self._free and self._free[-1].size >= size:
            return self._free.pop()
        for buffer in reversed(self._free):
            if buffer.size >= size:
                self._free.remove(buffer)
                return buffer
        return None

    def _new(self, size: int, alone: bool) -> Buffer | None:
        while self._free and self._made + size > self._total:
            self._made -= self._free.popleft().size
        if self._made + size > self._total and not alone:
            return None
        try:
            buffer = Buffer(size)
        except OSError:
            if alone:
                raise
            self._total = self._made  # there is no more memory to be had
            return None
        self._made += size
        return buffer


def copy(target: memoryview, source: bytes | memoryview) -> None:
    """Copy all of `source` to the start of `target`.

    Python's own assignment keeps every other thread waiting meanwhile: 0.3 ms for 4 MiB. But
    nothing else knows where a part of bytes begins, such as one of a frame table.
    """
    size = len(source)
    if size < _WORTH_A_CALL or (isinstance(source, memoryview) and source.readonly):
        target[:size] = source
        return
    start = source if isinstance(source, bytes) else address_of(source)
    ctypes.memmove(address_of(target[:size]), start, size)


def address_of(view: memoryview) -> int:
    """Return where in memory a writable view begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if view else 0
