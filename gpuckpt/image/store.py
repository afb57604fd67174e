"""An image that is there: its manifest, and its files found by CRIU's names for them.

Whoever can write an image decides what a restore runs, so it must belong to this user or to
root, and nobody else may be able to write it. All of it is opened relative to one open folder,
never through a link inside it, and only regular files are read.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.errors import ImageDamaged, ImageUntrusted, NotAnImage, NotPrivileged
from gpuckpt.image import disk, names, sealed
from gpuckpt.image.damage import Damage, Damaged, refusal
from gpuckpt.image.frames import FrameTable, TableDamaged, decode_table, table_size

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from gpuckpt.image.manifest import FileEntry, Manifest

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# O_NONBLOCK: opening a FIFO that somebody put there must not wait for its writer.
_READ = os.O_RDONLY | os.O_NONBLOCK | disk.INSIDE


class Image:
    """An open image; `entries` finds its files by CRIU's names. Close it, or use `with`.

    Reading from several threads is fine. `fd` and `criu_fd` are its folders, open; `seal` is the
    digest that its manifest ends with.
    """

    def __init__(self, path: Path, *, trust: bool) -> None:
        """Know the path, open nothing; use `open`."""
        self.path = path
        self.fd = self.criu_fd = -1
        self.manifest: Manifest
        self.seal = ""
        self.entries: dict[str, FileEntry] = {}
        self._trust = trust

    @classmethod
    def open(cls, path: Path, trust: bool = True) -> Image:
        """Open the image at `path`; with `trust` only if nobody else can have written it.

        Raises:
            NotAnImage: there is nothing, or something else, or an unfinished image.
            NotPrivileged: this user may not read it.
            ImageUntrusted: it is another user's, or others can write it.
            ImageDamaged: its manifest or its folder cannot be used.
            ImageUnsupported: it has a newer format.
        """
        image = cls(path, trust=trust)
        try:
            image._open()
        except PermissionError as why:
            image.close()
            raise NotPrivileged(f"{path} cannot be read by this user") from why
        except OSError as why:
            image.close()
            raise NotAnImage(f"{path} cannot be opened: {why.strerror or why}") from why
        except BaseException:
            image.close()
            raise
        return image

    def close(self) -> None:
        """Let go of the folders; closing twice is fine."""
        for fd in (self.criu_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.criu_fd = -1

    def __enter__(self) -> Self:
        """Return the image itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def open_stored(self, entry: FileEntry) -> int:
        """Return the stored file of `entry`, open for reading, its size as recorded.

        Raises:
            Damaged: it is missing, no regular file, or has another size.
            ImageUntrusted: as in `open`.
        """
        name = names.stored_name(entry.name)
        try:
            fd = os.open(name, _READ, dir_fd=self.criu_fd)
        except OSError as why:
            missing = isinstance(why, FileNotFoundError)
            reason = "it is missing" if missing else f"it cannot be opened ({why.strerror})"
            raise Damaged(stored_damage(entry, reason)) from why
        try:
            self._check_file(fd, entry)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_direct(self, entry: FileEntry, fd: int) -> int | None:
        """Return the file that `fd` is, open once more past the page cache; None if it cannot."""
        try:
            again = os.open(names.stored_name(entry.name), _READ | os.O_DIRECT, dir_fd=self.criu_fd)
        except OSError:
            return None
        if os.path.samestat(os.fstat(fd), os.fstat(again)):
            return again
        os.close(again)
        return None

    def table(self, entry: FileEntry, fd: int) -> FrameTable:
        """Return the frame table of the open stored file, checked against its digest.

        Raises:
            Damaged: it is not the table that was written.
        """
        size = table_size(entry.frames, entry.table_version)
        try:
            data = read_at(fd, size, entry.stored_size - size)
        except OSError as why:
            reason = f"its frame table cannot be read ({why.strerror})"
            raise Damaged(stored_damage(entry, reason)) from why
        if blake3(data).hexdigest() != entry.table_blake3:
            raise Damaged(stored_damage(entry, "its frame table is not the one written"))
        try:
            return decode_table(
                data,
                version=entry.table_version,
                frames=entry.frames,
                raw_size=entry.raw_size,
                stored_size=entry.stored_size,
            )
        except TableDamaged as why:
            raise Damaged(stored_damage(entry, str(why))) from why

    def check_sizes(self) -> None:
        """Look at every file without reading it: there, regular, right size, right table.

        Raises:
            ImageDamaged: with one finding for every file that is not as recorded.
            ImageUntrusted: as in `open`.
        """
        found = []
        for entry in self.manifest.files:
            try:
                fd = self.open_stored(entry)
                try:
                    self.table(entry, fd)
                finally:
                    os.close(fd)
            except Damaged as why:
                found.append(why.damage)
        if found:
            raise refusal(self.path, found)

    def _open(self) -> None:
        if names.is_stage(self.path.name):
            raise NotAnImage(f"{self.path} is an image that was never finished")
        try:
            self.fd = os.open(self.path, disk.FOLDER_FLAGS)
        except FileNotFoundError as why:
            raise NotAnImage(f"there is nothing at {self.path}") from why
        except NotADirectoryError as why:
            raise NotAnImage(f"{self.path} is no image: it is no folder") from why
        self._check_trust(self.fd, self.path)
        self.manifest = sealed.decode(data := self._manifest())
        self.seal = sealed.unbroken(data)
        try:
            flags = disk.FOLDER_FLAGS | os.O_NOFOLLOW
            self.criu_fd = os.open(names.CRIU_DIR, flags, dir_fd=self.fd)
        except (FileNotFoundError, NotADirectoryError) as why:
            raise refusal(self.path, [Damage(names.CRIU_DIR, "the folder is missing")]) from why
        self._check_trust(self.criu_fd, self.path / names.CRIU_DIR)
        self.entries = {entry.name: entry for entry in self.manifest.files}

    def _manifest(self) -> bytes:
        place = self.path / names.MANIFEST
        try:
            fd = os.open(names.MANIFEST, _READ, dir_fd=self.fd)
        except FileNotFoundError as why:
            raise NotAnImage(f"{self.path} is no image: it has no {names.MANIFEST}") from why
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
            return read_at(fd, seen.st_size, 0)
        finally:
            os.close(fd)

    def _check_file(self, fd: int, entry: FileEntry) -> None:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise Damaged(stored_damage(entry, "it is no regular file"))
        if seen.st_size != entry.stored_size:
            off = seen.st_size - entry.stored_size
            change = f"{off} bytes too long" if off > 0 else f"cut short by {-off} bytes"
            raise Damaged(stored_damage(entry, f"it is {change}"))
        self._check_trust(fd, self.path / names.CRIU_DIR / names.stored_name(entry.name))

    def _check_trust(self, fd: int, path: Path) -> None:
        if not self._trust:
            return
        seen = os.fstat(fd)
        if seen.st_uid not in {0, os.geteuid()}:
            raise ImageUntrusted(
                f"{path} belongs to user {seen.st_uid}; restoring it would run that user's code",
                hint=f"If you trust that user: chown -R {os.geteuid()} {self.path}",
            )
        if seen.st_mode & _OTHERS_WRITE:
            raise ImageUntrusted(
                f"{path} can be written by others (mode {stat.S_IMODE(seen.st_mode):04o})",
                hint=f"If nobody else changed it: chmod -R go-w {self.path}",
            )


def stored_damage(entry: FileEntry, reason: str) -> Damage:
    """Return the damage of a whole stored file."""
    return Damage(f"{names.CRIU_DIR}/{names.stored_name(entry.name)}", reason)


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes of a file, fewer only at its end. Bound `size` yourself."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
