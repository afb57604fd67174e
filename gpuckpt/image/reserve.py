"""Buffers in great number, made ahead: what waits in memory while nobody packs it.

Memory that was never touched costs a page fault at its first byte (about 2 GB/s on the virtual
machines GPU jobs run on), and whoever is read meanwhile waits for it. So it is touched before, by
all cores, while the job still runs. A few large mappings are cut into buffers: one for each would
reach the kernel's limit of 65,530 mappings at 84 GiB.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.image.buffers import Buffer, address_of, room_for
from gpuckpt.image.crew import cores
from gpuckpt.image.frames import FRAME_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_EACH: Final = room_for(FRAME_SIZE)
_AT_ONCE: Final = 16  # buffers of one mapping
_MOST_THREADS: Final = 8
_POPULATE_WRITE: Final = 23  # Linux 5.14


def reserve(total: int, ready: Callable[[list[Buffer]], bool]) -> None:
    """Make buffers of `total` bytes, as far as there is memory; `ready` says whether to go on.

    It gets those that are touched, from any thread.
    """
    with ThreadPoolExecutor(min(_MOST_THREADS, cores()), "reserve") as pool:
        going = [True]

        def one(count: int) -> None:
            with suppress(OSError):
                if going[0] and not ready(_touched(count)):
                    going[0] = False

        list(pool.map(one, _counts(total // _EACH)))


def _counts(buffers: int) -> Iterator[int]:
    while buffers > 0:
        yield min(buffers, _AT_ONCE)
        buffers -= _AT_ONCE


def _touched(count: int) -> list[Buffer]:
    """Return so many buffers; OSError if there is no memory for them."""
    memory = mmap.mmap(-1, count * _EACH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    # Python's own madvise keeps every other thread waiting meanwhile (3.11)
    libc = ctypes.CDLL(None, use_errno=True)
    start, size = ctypes.c_void_p(address_of(memoryview(memory))), ctypes.c_size_t(len(memory))
    if libc.madvise(start, size, _POPULATE_WRITE):
        if (why := ctypes.get_errno()) != errno.EINVAL:
            raise OSError(why, "no memory")
        ctypes.memset(start, 0, len(memory))
    return [Buffer(_EACH, memory, number * _EACH) for number in range(count)]
