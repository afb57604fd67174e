"""The digest of a file that stays outside of an image: of all its bytes, or of samples of them.

Weights and data sets have hundreds of GiB. The samples of a large file, with its size, find every
other version of it that anybody would put in its place, in milliseconds.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

# image/FORMAT.md tells how these make a sampled digest: they never change
SMALL: Final = 8 << 20
PIECES: Final = 64
PIECE: Final = 64 << 10
_AT_ONCE: Final = 4 << 20
_CREW: Final = 16  # on a network file system it is waiting, not work
_POLL_SECONDS: Final = 0.1
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Digest(Value, frozen=True):
    """What the bytes of a file came to; `sampled`: of its size and of samples, not of all."""

    hex: str
    sampled: bool
    size: int
    mtime_ns: int


def digest(path: str, *, full: bool, on_bytes: Callable[[int], None] = lambda _: None) -> Digest:
    """Read a regular file, links followed; of a large one only samples unless `full`.

    `on_bytes` is told of each piece; what it raises ends the reading.

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
            on_bytes(length)
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


class Digests:
    """Digests of many files, made side by side; those of files that have not changed are kept."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[tuple[object, ...], Digest] = {}

    def of(
        self, paths: Iterable[str], *, full: bool, advance: Callable[[int], None] = lambda _: None
    ) -> dict[str, Digest | None]:
        """Return the digest of each file, None for what cannot be read or is no regular file.

        `advance` is told of bytes, in the thread that calls; what it raises ends the work.
        """
        found: dict[str, Digest | None] = {}
        waiting: dict[Future[Digest | None], tuple[str, tuple[object, ...]]] = {}
        work = _Work(full=full)
        with ThreadPoolExecutor(_CREW, "digest") as crew:
            try:
                for path in dict.fromkeys(paths):
                    stamp = _stamp(path, full=full)
                    if stamp is None or stamp in self._known:
                        found[path] = self._known[stamp] if stamp is not None else None
                    else:
                        waiting[crew.submit(work.read, path)] = path, stamp
                left = set(waiting)
                while left:
                    _, left = wait(left, _POLL_SECONDS)
                    advance(work.moved())
            except BaseException:
                work.stop()
                raise
        for one, (path, stamp) in waiting.items():
            found[path] = made = one.result()
            if made is not None:
                self._known[stamp] = made
        return found


class _Work:
    """What the threads share: how much was read, and whether it is still wanted."""

    def __init__(self, *, full: bool) -> None:
        self._full = full
        self._pieces: deque[int] = deque()
        self._stopped = False

    def read(self, path: str) -> Digest | None:
        try:
            return digest(path, full=self._full, on_bytes=self._count)
        except OSError:
            return None

    def moved(self) -> int:
        """Return the bytes read since it was asked last."""
        return sum(self._pieces.popleft() for _ in range(len(self._pieces)))

    def stop(self) -> None:
        self._stopped = True

    def _count(self, amount: int) -> None:
        if self._stopped:
            raise OSError(errno.ECANCELED, "not wanted any more")
        self._pieces.append(amount)


def _stamp(path: str, *, full: bool) -> tuple[object, ...] | None:
    """Return what changes with the bytes of a file; None if there is none."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - paths may hold any bytes
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, full)
