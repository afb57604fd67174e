"""Putting bytes that were proved into CRIU's pipe: the pages themselves, or a copy.

Lending pages to a pipe (vmsplice) costs a fifteenth of a copy. Whoever reads them copies them
out, and until then they must stay as they are. That holds only for a reader who read()s: CRIU
4.2.1 reads the pages of tasks into their memory (maybe_read_page_img_streamer), and those are
nearly all the bytes of an image. It splices others on, data of pipes and sockets for instance
into the job's own, where our pages would stay for as long as the job likes: those are copied.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from gpuckpt.image.buffers import address_of
from gpuckpt.image.relay import widen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuckpt.image.buffers import Buffer, Buffers

_MOST_PARTS: Final = 1024  # IOV_MAX
_SPLICE_F_NONBLOCK: Final = 2


class _Part(ctypes.Structure):
    """One struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_vmsplice = _libc.vmsplice
_vmsplice.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_uint)
_writev = _libc.writev
_writev.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_vmsplice.restype = _writev.restype = ctypes.c_ssize_t


class Rest:
    """What of a frame is still to be handed over; `left` bytes."""

    __slots__ = ("_at", "_parts", "_pieces", "left")

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        """Begin with all of it."""
        self._pieces = pieces  # holds the memory
        self._parts = (_Part * len(pieces))(
            *[_Part(address_of(piece), len(piece)) for piece in pieces]
        )
        self._at = 0
        self.left = sum(map(len, pieces))

    def pointer(self) -> tuple[object, int]:
        """Return where the vector of what is left begins, and how many parts it has."""
        place = ctypes.byref(self._parts, self._at * ctypes.sizeof(_Part))
        return place, min(len(self._parts) - self._at, _MOST_PARTS)

    def advance(self, count: int) -> None:
        """Know that `count` bytes were handed over."""
        self.left -= count
        while count:
            part = self._parts[self._at]
            if count < part.length:
                part.base += count
                part.length -= count
                return
            count -= part.length
            self._at += 1


class Copies:
    """Hands over copies, to any descriptor."""

    def __init__(self, fd: int) -> None:
        """Write to `fd`, which does not block."""
        self._fd = fd

    def put(self, rest: Rest) -> None:
        """Hand over as much as there is room for.

        Raises:
            BlockingIOError: there is none.
            BrokenPipeError: the reader went away.
        """
        place, count = rest.pointer()
        rest.advance(_checked(_writev(self._fd, place, count)))

    def done(self, buffer: Buffer, buffers: Buffers) -> None:
        """Give back the buffer of a frame that was handed over."""
        buffers.give(buffer)

    def give_up(self, buffer: Buffer, buffers: Buffers) -> None:
        """Give back the buffer of a frame that was not handed over, or not wholly."""
        buffers.give(buffer)

    def let_go(self, buffers: Buffers) -> None:
        """Give back what is held still."""


class Pages:
    """Hands over pages, to a pipe; a buffer is held until the pipe cannot have any of it."""

    def __init__(self, fd: int, room: int) -> None:
        """Put into the pipe `fd`, which does not block and has room for so many bytes."""
        self._fd = fd
        self._room = room
        self._put = 0
        self._lent: deque[tuple[int, Buffer]] = deque()

    def put(self, rest: Rest) -> None:
        """Hand over as much as there is room for.

        Raises:
            BlockingIOError: there is none.
            BrokenPipeError: the reader went away.
        """
        place, parts = rest.pointer()
        count = _checked(_vmsplice(self._fd, place, parts, _SPLICE_F_NONBLOCK))
        self._put += count
        rest.advance(count)

    def done(self, buffer: Buffer, buffers: Buffers) -> None:
        """Give back what the pipe cannot have any more; the frame in `buffer` was handed over."""
        self._lent.append((self._put, buffer))
        while self._lent[0][0] <= self._put - self._room:
            buffers.give(self._lent.popleft()[1])

    def give_up(self, buffer: Buffer, buffers: Buffers) -> None:
        """Give back the buffer of a frame that was not handed over, or not wholly."""
        buffer.renew()
        buffers.give(buffer)

    def let_go(self, buffers: Buffers) -> None:
        """Give back everything; the pages that the pipe has stay with it."""
        while self._lent:
            _, buffer = self._lent.popleft()
            buffer.renew()
            buffers.give(buffer)


def way_into(fd: int, size: int, *, is_read: bool) -> Copies | Pages:
    """Return how `size` bytes go into `fd`; `is_read`: whoever gets them read()s them."""
    room = widen(fd)
    # What fits into the pipe as a whole would be lent until the reader comes.
    lend = is_read and room and size > room and _may_lend(fd)
    return Pages(fd, room) if lend else Copies(fd)


def _may_lend(fd: int) -> bool:
    """Try with no bytes at all: the filters of some containers forbid it."""
    return not _vmsplice(fd, None, 0, _SPLICE_F_NONBLOCK)


def _checked(count: int) -> int:
    if count < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return count
