"""The digest of a file that stays outside of an image: of all its bytes, or of samples of them.

Weights and data sets have hundreds of GiB. The samples of a large file, with its size, find every
other version of it that anybody would put in its place, in milliseconds.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

# image/FORMAT.md tells how these make a sampled digest: they never change
SMALL: Final = 8 << 20
PIECES: Final = 64
PIECE: Final = 64 << 10
_AT_ONCE: Final = 4 << 20
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Digest(Value, frozen=True):
    """What the bytes of a file came to; `sampled`: of its size and of samples, not of all."""

    hex: str
    sampled: bool
    size: int
    mtime_ns: int


def digest(path: str, *, full: bool) -> Digest:
    """Read a regular file, links followed; of a large one only samples unless `full`.

    Raises:
        OSError: it cannot be read, is no regular file, or becomes shorter meanwhile.
    """
    fd = os.open(path, _READ)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "no regular file", path)
        sampled = not full and seen.st_size > SMALL
        found = blake3(seen.st_size.to_bytes(8, "little") if sampled else b"")
        for offset, length in _samples(seen.st_size) if sampled else _all(seen.st_size):
            piece = os.pread(fd, length, offset)
            if len(piece) < length:
                raise OSError(errno.EIO, "it has become shorter", path)
            found.update(piece)
    finally:
        os.close(fd)
    return Digest(found.hexdigest(), sampled, seen.st_size, seen.st_mtime_ns)


def _samples(size: int) -> Iterator[tuple[int, int]]:
    """Go evenly through a file: its first and its last bytes are among them."""
    for number in range(PIECES):
        yield number * (size - PIECE) // (PIECES - 1), PIECE


def _all(size: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, size, _AT_ONCE):
        yield offset, min(_AT_ONCE, size - offset)
