"""An image in a folder of this host.

Whoever can write an image decides what a restore runs, so it must belong to this user or to
root, and nobody else may be able to write it. All of it is opened relative to one open folder,
never through a link inside it, and only regular files are read.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from gpuckpt.errors import ImageDamaged, ImageUntrusted, NotAnImage, NotPrivileged
from gpuckpt.image import disk, names, sealed
from gpuckpt.image.buffers import BLOCK
from gpuckpt.image.damage import Damage, Damaged, refusal, stored_damage, wrong_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from gpuckpt.image.manifest import FileEntry

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# O_NONBLOCK: opening a FIFO that somebody put there must not wait for its writer.
_READ = os.O_RDONLY | os.O_NONBLOCK | disk.INSIDE
# not cached; or the filesystem knows no such flag, or takes O_DIRECT and refuses the read
_NOT_SO = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL})
_BIG = 1 << 20
_TOP = frozenset({names.MANIFEST, names.CRIU_DIR, names.LOGS_DIR, names.OWNER})


class LocalOrigin:
    """See Origin. With `trust` only what nobody else can have written is opened."""

    def __init__(self, path: Path, *, trust: bool) -> None:
        """Know the path, open nothing."""
        self._path = path
        self._trust = trust
        self._fd = self._criu = -1
        self._known: frozenset[str] = frozenset()

    def close(self) -> None:
        """See Origin."""
        for fd in (self._criu, self._fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._criu = -1

    def manifest(self) -> bytes:
        """See Origin."""
        path = self._path
        if names.is_stage(path.name):
            raise NotAnImage(f"{path} is an image that was never finished")
        try:
            self._fd = os.open(path, disk.FOLDER_FLAGS)
            self._check_trust(self._fd, path)
            return self._manifest()
        except FileNotFoundError as why:
            raise NotAnImage(f"there is nothing at {path}") from why
        except NotADirectoryError as why:
            raise NotAnImage(f"{path} is no image: it is no folder") from why
        except PermissionError as why:
            raise NotPrivileged(f"{path} cannot be read by this user") from why
        except OSError as why:
            raise NotAnImage(f"{path} cannot be opened: {why.strerror or why}") from why

    def expect(self, entries: Collection[FileEntry]) -> None:
        """See Origin."""
        flags = disk.FOLDER_FLAGS | os.O_NOFOLLOW
        try:
            self._criu = os.open(names.CRIU_DIR, flags, dir_fd=self._fd)
        except (FileNotFoundError, NotADirectoryError) as why:
            raise refusal(self._path, [Damage(names.CRIU_DIR, "the folder is missing")]) from why
        except PermissionError as why:
            raise NotPrivileged(f"{self._path} cannot be read by this user") from why
        except OSError as why:
            raise NotAnImage(f"{self._path} cannot be opened: {why.strerror or why}") from why
        self._check_trust(self._criu, self._path / names.CRIU_DIR)
        self._known = frozenset(names.stored_name(entry.name) for entry in entries)

    def open(self, entry: FileEntry) -> LocalFile:
        """See Origin."""
        name = names.stored_name(entry.name)
        try:
            fd = os.open(name, _READ, dir_fd=self._criu)
        except OSError as why:
            missing = isinstance(why, FileNotFoundError)
            reason = "it is missing" if missing else f"it cannot be opened ({why.strerror})"
            raise Damaged(stored_damage(entry, reason)) from why
        try:
            self._check_file(fd, entry)
            return LocalFile(fd, self._direct(entry, fd), entry.stored_size)
        except BaseException:
            os.close(fd)
            raise

    def strays(self) -> Iterator[str]:
        """See Origin; logs may be anything."""
        for folder, fd, known in (
            ("", self._fd, _TOP),
            (f"{names.CRIU_DIR}/", self._criu, self._known),
        ):
            with os.scandir(fd) as entries:
                yield from (f"{folder}{one.name}" for one in entries if one.name not in known)

    def _manifest(self) -> bytes:
        place = self._path / names.MANIFEST
        try:
            fd = os.open(names.MANIFEST, _READ, dir_fd=self._fd)
        except FileNotFoundError as why:
            raise NotAnImage(f"{self._path} is no image: it has no {names.MANIFEST}") from why
        except PermissionError:
            raise
        except OSError as why:
            raise ImageDamaged(f"{place} cannot be opened: {why.strerror}") from why
        try:
            self._check_trust(fd, place)
            seen = os.fstat(fd)
            if not stat.S_ISREG(seen.st_mode):
                raise ImageDamaged(f"{place} is no regular file")
            if seen.st_size > sealed.LARGEST_MANIFEST:
                raise ImageDamaged(f"{place} has {seen.st_size} bytes: too many for a manifest")
            return _read_at(fd, seen.st_size, 0)
        finally:
            os.close(fd)

    def _direct(self, entry: FileEntry, fd: int) -> int | None:
        """Return the file that `fd` is, open once more past the page cache; None if it cannot.

        What of a big file is not in the page cache is read past it: a restore needs the host's
        memory for the job, and filling the cache costs more than the reading.
        """
        if entry.stored_size < _BIG:
            return None
        try:
            again = os.open(names.stored_name(entry.name), _READ | os.O_DIRECT, dir_fd=self._criu)
        except OSError:
            return None
        if os.path.samestat(os.fstat(fd), os.fstat(again)):
            return again
        os.close(again)
        return None

    def _check_file(self, fd: int, entry: FileEntry) -> None:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise Damaged(stored_damage(entry, "it is no regular file"))
        if seen.st_size != entry.stored_size:
            raise Damaged(wrong_size(entry, seen.st_size))
        self._check_trust(fd, self._path / names.CRIU_DIR / names.stored_name(entry.name))

    def _check_trust(self, fd: int, path: Path) -> None:
        if not self._trust:
            return
        seen = os.fstat(fd)
        if seen.st_uid not in {0, os.geteuid()}:
            raise ImageUntrusted(
                f"{path} belongs to user {seen.st_uid}; restoring it would run that user's code",
                hint=f"If you trust that user: chown -R {os.geteuid()} {self._path}",
            )
        if seen.st_mode & _OTHERS_WRITE:
            raise ImageUntrusted(
                f"{path} can be written by others (mode {stat.S_IMODE(seen.st_mode):04o})",
                hint=f"If nobody else changed it: chmod -R go-w {self._path}",
            )


class LocalFile:
    """See Source."""

    def __init__(self, fd: int, direct: int | None, size: int) -> None:
        """Take a file that is open, and once more past the page cache if that can be."""
        self._fd = fd
        self._direct = direct
        self._size = size

    def close(self) -> None:
        """See Source."""
        os.close(self._fd)
        if self._direct is not None:
            os.close(self._direct)

    def tail(self, size: int) -> bytes:
        """See Source."""
        return _read_at(self._fd, size, self._size - size)

    def read(self, start: int, size: int, room: memoryview) -> memoryview:
        """See Source. Unless `room` is page-aligned, what is not cached is read through the cache.

        Past it whole blocks are read, up to the one that holds the last byte.
        """
        if self._direct is None:
            return self._plainly(start, room[:size])
        return self._cached(start, room[:size]) or self._past_cache(start, size, room, self._direct)

    def _cached(self, start: int, view: memoryview) -> memoryview | None:
        try:
            count = os.preadv(self._fd, [view], start, os.RWF_NOWAIT)
        except OSError as why:
            if why.errno in _NOT_SO:
                return None
            raise
        return view if count == len(view) else None

    def _past_cache(self, start: int, size: int, room: memoryview, direct: int) -> memoryview:
        first = start & -BLOCK
        skip = start - first
        whole = (skip + size + BLOCK - 1) & -BLOCK
        try:
            got = os.preadv(direct, [room[:whole]], first)
        except OSError as why:
            if why.errno not in _NOT_SO:
                raise
            got = 0
        if got >= skip + size:
            return room[skip : skip + size]
        return self._plainly(start, room[:size])

    def _plainly(self, start: int, view: memoryview) -> memoryview:
        got = 0
        while got < len(view):
            count = os.preadv(self._fd, [view[got:]], start + got)
            if not count:
                break
            got += count
        return view[:got]


def _read_at(fd: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes of a file, fewer only at its end. Bound `size` yourself."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
