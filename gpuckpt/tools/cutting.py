"""Shortening a file that has grown since a dump, and giving it back what it lost by that.

The later bytes lie on disk beside the file, whole and under a name of their own, before it loses
them. Each step may be done again after it was cut short at any point.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools import folders, sparse
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PIECE: Final = 1 << 20
_OPEN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Cut(Value, frozen=True):
    """A file that had `was` bytes and gets `size`: those after them go to `aside`."""

    path: str
    device: int
    inode: int
    size: int
    was: int
    mtime_ns: int
    aside: str

    @property
    def fresh(self) -> str:
        """What `aside` is called until it is whole."""
        return f"{self.aside}.new"


def split(path: str) -> tuple[str, str]:
    """Return the folder of a path and the name in it."""
    folder, _, name = path.rpartition("/")
    return folder or "/", name


@contextmanager
def unnamed(folder: int, spare: str = "") -> Iterator[int]:
    """Give a new file without a name in a folder, open; it is closed here only if all fails.

    Where every file has to have a name (NFS) it is `spare`, which the caller removes.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=folder)
    except OSError as why:
        if why.errno not in {errno.EOPNOTSUPP, errno.EISDIR} or not spare:
            raise
        fd = os.open(spare, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        yield fd
    except BaseException:
        os.close(fd)
        raise


def give_name(fd: int, folder: int, name: str) -> None:
    """Give an open file a name that nothing has; OSError if something has it."""
    # with a folder's descriptor, or Python 3.11 links the link in /proc itself
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=folder, dst_dir_fd=folder)


def keep(cut: Cut, check: Callable[[], None] = lambda: None) -> None:
    """Write the later bytes to `aside`, with the file's mode, owner and times.

    `check` is called between pieces, and may raise.

    Raises:
        OSError: the file is not as it was looked at, or the bytes cannot be written.
    """
    with _opened(cut, os.O_RDONLY) as (place, fd):
        seen = _unchanged(fd, cut)
        fresh = _written(place, cut, [(fd, cut.size)], seen, check)
        os.link(fresh, split(cut.aside)[1], src_dir_fd=place, dst_dir_fd=place)
        os.unlink(fresh, dir_fd=place)
        os.fsync(place)


def shorten(cut: Cut, mtime_ns: int) -> None:
    """Take the later bytes from the file; `mtime_ns` is when it was last written to without them.

    Raises:
        OSError: somebody has written to it meanwhile, or it is another one.
    """
    with _opened(cut, os.O_RDWR) as (_, fd):
        _unchanged(fd, cut)
        os.ftruncate(fd, cut.size)
        os.utime(fd, ns=(os.fstat(fd).st_atime_ns, mtime_ns))


def rejoin(cut: Cut) -> None:
    """Give the file its later bytes back and remove `aside`; what was appended since follows them.

    If its name is another file's by now, or it has become shorter, `aside` stays as it is: nobody
    else has these bytes.

    Raises:
        OSError: it cannot be read or written.
    """
    with suppress(FileNotFoundError, _Lost), _opened(cut, os.O_RDONLY) as (place, fd):
        name = split(cut.aside)[1]
        _forget(place, cut)
        if os.fstat(fd).st_size >= cut.size:
            if _is_shorter(cut, place, name, fd):
                _lengthened(cut, place, name, fd)
            seen = os.fstat(fd)
            if seen.st_size == cut.was and seen.st_mtime_ns != cut.mtime_ns:
                os.utime(fd, ns=(seen.st_atime_ns, cut.mtime_ns))
            os.unlink(name, dir_fd=place)
            os.fsync(place)


class _Lost(OSError):
    """Its name is another file's, or nobody's."""


@contextmanager
def _opened(cut: Cut, how: int) -> Iterator[tuple[int, int]]:
    """Give the folder of the file, and the file, both open."""
    folder, name = split(cut.path)
    place = folders.opened(folder)
    try:
        fd = os.open(name, how | _OPEN, dir_fd=place)
        try:
            seen = os.fstat(fd)
            if (seen.st_dev, seen.st_ino) != (cut.device, cut.inode):
                raise _Lost(errno.ESTALE, "another file has its name now", cut.path)
            yield place, fd
        finally:
            os.close(fd)
    finally:
        os.close(place)


def _unchanged(fd: int, cut: Cut) -> os.stat_result:
    seen = os.fstat(fd)
    if (seen.st_size, seen.st_mtime_ns) != (cut.was, cut.mtime_ns):
        raise OSError(errno.EBUSY, "somebody has written to it just now", cut.path)
    return seen


def _written(
    place: int,
    cut: Cut,
    parts: Iterable[tuple[int, int]],
    like: os.stat_result,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Write what comes after an offset of each of `parts` to disk; return the file's first name."""
    _forget(place, cut)
    fresh = split(cut.fresh)[1]
    with unnamed(place, fresh) as made:
        for source, start in parts:
            for piece in _pieces(source, start):
                sparse.write_all(made, piece)
                check()
        os.fchown(made, like.st_uid, like.st_gid)
        os.fchmod(made, stat.S_IMODE(like.st_mode))
        os.utime(made, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.fsync(made)
        if not os.fstat(made).st_nlink:
            give_name(made, place, fresh)
    os.close(made)
    return fresh


def _forget(place: int, cut: Cut) -> None:
    """Remove what a run that was cut short has left."""
    with suppress(FileNotFoundError):
        os.unlink(split(cut.fresh)[1], dir_fd=place)


def _is_shorter(cut: Cut, place: int, name: str, fd: int) -> bool:
    """Whether the file lacks bytes that lie beside it; those appended since go there as well.

    What stands after its `size` bytes is the beginning of a run that was cut short, or all of it,
    or what others have appended: that is put behind the later bytes, in one stroke.
    """
    aside = os.open(name, os.O_RDONLY | _OPEN, dir_fd=place)
    try:
        kept, lost = os.fstat(aside).st_size, cut.was - cut.size
        if kept < lost:
            raise _Lost(errno.ESTALE, "somebody has changed it", cut.aside)
        here = os.fstat(fd).st_size - cut.size
        if kept == lost and _same(fd, cut.size, aside, min(here, lost)):
            return here < lost
        if kept == lost:
            fresh = _written(place, cut, [(aside, 0), (fd, cut.size)], os.fstat(aside))
            os.rename(fresh, name, src_dir_fd=place, dst_dir_fd=place)
    finally:
        os.close(aside)
    return True


def _lengthened(cut: Cut, place: int, name: str, fd: int) -> None:
    # only what was cut has to be written to: of others it may be forbidden (chattr +a)
    into = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        aside = os.open(name, os.O_RDONLY | _OPEN, dir_fd=place)
        try:
            at = cut.size
            for piece in _pieces(aside, 0):
                view = memoryview(piece)
                while view:
                    count = os.pwrite(into, view, at)
                    view, at = view[count:], at + count
        finally:
            os.close(aside)
        os.fsync(into)
    finally:
        os.close(into)


def _same(fd: int, start: int, other: int, length: int) -> bool:
    for at in range(0, length, _PIECE):
        count = min(_PIECE, length - at)
        if os.pread(fd, count, start + at) != os.pread(other, count, at):
            return False
    return True


def _pieces(fd: int, at: int) -> Iterator[bytes]:
    """Yield what comes after an offset."""
    while piece := os.pread(fd, _PIECE, at):
        yield piece
        at += len(piece)
