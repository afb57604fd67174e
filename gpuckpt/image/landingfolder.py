"""A folder of this host as the place where a copy of an image arrives: a stage first."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.errors import ImageExists, UsageError
from gpuckpt.image import disk, names, owner
from gpuckpt.image.landing import PART, WINDOW

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.landing import Piecewise


class FolderLanding:
    """See Landing: a folder of this host."""

    def __init__(self, place: Path, image_id: str) -> None:
        """Touch nothing yet."""
        self.place = place
        self._name = names.stage_name(place.name, blake3(image_id.encode()).hexdigest()[:8])
        self._owner = f"copy {image_id}"
        self._parent = self._fd = self._criu = self._lock = -1

    def begin(self) -> None:
        """See Landing."""
        if self.place.name in {"", ".", ".."} or names.is_stage(self.place.name):
            raise UsageError(f"{self.place} is no name for an image")
        try:
            self._parent = os.open(self.place.parent, disk.FOLDER_FLAGS)
            if disk.present(self._parent, self.place.name):
                raise ImageExists(f"{self.place} exists already")
            self._fd = _folder(self._parent, self._name)
            self._claim()
            self._criu = _folder(self._fd, names.CRIU_DIR)
            os.close(_folder(self._fd, names.LOGS_DIR))
        except OSError as why:
            raise disk.creation_error(why, self.place.parent, self._parent) from why

    def names(self) -> dict[str, int]:
        """See Landing."""
        with os.scandir(self._criu) as entries:
            return {f"{names.CRIU_DIR}/{one.name}": one.stat().st_size for one in entries}

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Landing."""
        fd = os.open(_inside(name), os.O_RDONLY | disk.INSIDE, dir_fd=self._criu)
        try:
            return os.pread(fd, length, start)
        finally:
            os.close(fd)

    def upload(self, name: str, size: int) -> Piecewise:
        """See Landing."""
        flags = os.O_WRONLY | os.O_CREAT | disk.INSIDE
        try:
            return _FilePieces(self, os.open(_inside(name), flags, 0o600, dir_fd=self._criu), size)
        except OSError as why:
            raise self.error(why) from why

    def remove(self, name: str) -> None:
        """See Landing."""
        with suppress(FileNotFoundError):
            os.unlink(_inside(name), dir_fd=self._criu)

    def finish(self, document: bytes) -> None:
        """See Landing."""
        try:
            with suppress(FileNotFoundError):
                os.unlink(names.MANIFEST, dir_fd=self._fd)
            fd = disk.new_file(self._fd, names.MANIFEST)
            try:
                disk.write_all(fd, document)
                os.fsync(fd)
            finally:
                os.close(fd)
            for folder in (self._criu, self._fd):
                os.fsync(folder)
            disk.rename_into_place(self._parent, self._name, self.place.name)
            os.fsync(self._parent)
        except FileExistsError as why:
            raise ImageExists(f"{self.place} exists already") from why
        except OSError as why:
            raise self.error(why) from why
        with suppress(OSError):
            os.unlink(names.OWNER, dir_fd=self._fd)

    def discard(self) -> bool:
        """See Landing."""
        try:
            self._parent = os.open(self.place.parent, disk.FOLDER_FLAGS)
            self._fd = os.open(self._name, disk.FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self._parent)
            self._claim()
            shutil.rmtree(self._name, dir_fd=self._parent)
        except FileNotFoundError:
            return False
        except OSError as why:
            raise disk.creation_error(why, self.place.parent, self._parent) from why
        return True

    def close(self) -> None:
        """See Landing."""
        for fd in (self._lock, self._criu, self._fd, self._parent):
            if fd >= 0:
                os.close(fd)
        self._lock = self._criu = self._fd = self._parent = -1

    def error(self, why: OSError) -> Exception:
        """Return what to say when it cannot be written."""
        return disk.creation_error(why, self.place.parent, self._parent)

    def _claim(self) -> None:
        try:
            self._lock = owner.claim(self._fd, self._owner)
        except FileExistsError:
            self._lock = os.open(names.OWNER, os.O_RDWR | disk.INSIDE, dir_fd=self._fd)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as why:
                raise ImageExists(
                    f"{self.place} is being written by another copy of this image",
                    hint="Wait for it to end.",
                ) from why
            except OSError:  # a filesystem without locks
                return


class _FilePieces:
    """See Piecewise."""

    part = PART

    def __init__(self, landing: FolderLanding, fd: int, size: int) -> None:
        self._landing = landing
        self._fd = fd
        has = os.fstat(fd).st_size
        if has > size:
            os.ftruncate(fd, has := 0)
        self.there = frozenset(range(0, has - (WINDOW + 1) * PART, PART))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        try:
            disk.write_all(self._fd, data, offset)
            disk.start_writeback(self._fd, offset, len(data))
        except OSError as why:
            raise self._landing.error(why) from why

    def close(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as why:
            raise self._landing.error(why) from why
        finally:
            os.close(self._fd)


def _folder(parent: int, name: str) -> int:
    """Return a folder, open: new, or there already as one of ours."""
    try:
        return disk.new_folder(parent, name)
    except FileExistsError:
        return os.open(name, disk.FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)


def _inside(name: str) -> str:
    return name.removeprefix(f"{names.CRIU_DIR}/")
