"""Files with holes: what is in them, read and written piece by piece."""

from __future__ import annotations

import errno
import os
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

# a hole smaller than this is read and written as the zeros it is: fewer extents to tell of
SMALLEST_HOLE: Final = 64 << 10
_PIECE: Final = 1 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Reading:
    """A file that is open for reading: the one of that name, never what a link leads to."""

    def __init__(self, path: str) -> None:
        """Open it; OSError if that cannot be."""
        self.fd = os.open(path, _READ)

    def __enter__(self) -> Self:
        """Return the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self.fd)

    def pieces(self, extents: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the bytes of all extents.

        Raises:
            OSError: it cannot be read, or is too short.
        """
        for offset, length in extents:
            at, end = offset, offset + length
            while at < end:
                piece = os.pread(self.fd, min(_PIECE, end - at), at)
                if not piece:
                    raise OSError(errno.EIO, "it has become shorter")
                yield piece
                at += len(piece)


def extents(fd: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return what is no hole in an open file; small holes are counted in."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
        except OSError as why:
            if why.errno == errno.ENXIO:  # nothing but a hole is left
                break
            raise
        if found and begin - sum(found[-1]) < SMALLEST_HOLE:
            begin = found.pop()[0]
        if at > begin:
            found.append((begin, at - begin))
    return tuple(found)


def beyond(
    here: Iterable[tuple[int, int]], known: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Return the parts of `here`, which is in order, that `known`, in order as well, lacks."""
    covered, first = list(known), 0
    for offset, length in here:
        at, end = offset, offset + length
        while first < len(covered) and sum(covered[first]) <= at:
            first += 1  # a file may have a hundred thousand of them: those behind are done with
        for start, size in islice(covered, first, None):
            if start >= end:
                break
            if start > at:
                yield at, start - at
            at = start + size
        if at < end:
            yield at, end - at


def write_all(fd: int, data: bytes) -> None:
    """Write all of it; OSError if that cannot be."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fill(
    fd: int, source: int, offset: int, length: int, check: Callable[[], None] = lambda: None
) -> None:
    """Write an extent of what `source` gives; `check` is called between pieces, and may raise.

    Raises:
        OSError: it cannot be written, or `source` ended too early.
    """
    end = offset + length
    while offset < end:
        piece = os.read(source, min(_PIECE, end - offset))
        if not piece:
            raise OSError(errno.EIO, "the image's bytes ended too early")
        view = memoryview(piece)
        while view:
            count = os.pwrite(fd, view, offset)
            view = view[count:]
            offset += count
        check()
