"""The image while it is being written: a hidden folder beside the place it will have.

The rename at the end is the commit: before it there is no image, after it there is a whole
one. Everything is done relative to open folders, so neither a long path nor a folder that is
moved away meanwhile matters.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import ImageExists, UsageError, WriteFailed
from gpuckpt.image import disk, names, owner, sealed
from gpuckpt.image.sink import Folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.image.manifest import Manifest

# The kernel takes paths of 4095 bytes; what is put inside the stage needs a name of its own.
_LONGEST_PATH = 4095 - 256


class Stage:
    """An unfinished image; `criu` and `logs` are there to be filled. Not for two threads.

    `fd`, `criu_fd` and `logs_fd` are the same folders, open.
    """

    def __init__(self, final: Path, parent: int, name: str) -> None:
        """Know the open folder `parent` and the stage's name in it; `create` makes it."""
        self.final = final
        self.committed = False
        self.fd = self.criu_fd = self.logs_fd = -1
        self._parent = parent
        self._name = name
        self._owner = ""
        self._lock = -1

    @classmethod
    def create(cls, final: Path, owner_text: str = "") -> Stage:
        """Make the stage of the image `final`, mode 0700.

        `owner_text` says who writes it, in words that the `alive` of `sweep` understands.

        Raises:
            ImageExists: something is there already.
            UsageError: the name is none for an image, or too long.
            NotWritable: the folder for it is missing, read-only or not ours to write.
            NoSpace: the disk is full.
        """
        final = final.absolute()
        if final.name in {"", ".", ".."} or names.is_stage(final.name):
            raise UsageError(f"{final} is no name for an image")
        try:
            parent = os.open(final.parent, disk.FOLDER_FLAGS)
        except OSError as why:
            raise disk.creation_error(why, final.parent) from why
        stage = cls(final, parent, names.stage_name(final.name))
        try:
            stage._make(owner_text)
        except OSError as why:
            error = disk.creation_error(why, final.parent, parent)
            with suppress(WriteFailed):
                stage.discard()
            raise error from why
        except ImageExists:
            stage.close()
            raise
        return stage

    @property
    def folder(self) -> Path:
        """The stage itself."""
        return _reachable(self._path, self.fd)

    @property
    def criu(self) -> Path:
        """The folder for the stored CRIU images."""
        return _reachable(self._path / names.CRIU_DIR, self.criu_fd)

    @property
    def logs(self) -> Path:
        """The folder for logs worth keeping."""
        return _reachable(self._path / names.LOGS_DIR, self.logs_fd)

    def shelf(self) -> Folder:
        """Return the folder for the stored CRIU images, open for one packer."""
        return Folder(self.criu)

    def commit(self, what: Manifest) -> Path:
        """Write manifest.json last, sync everything, and make the stage the image.

        Raises:
            ImageExists: something took the final name meanwhile; it is left alone.
            WriteFailed: the disk is full or failed; there is no image.
        """
        data = sealed.encode(what)
        try:
            self._write_manifest(data)
            for fd in (self.criu_fd, self.logs_fd, self.fd):
                os.fsync(fd)
            disk.rename_into_place(self._parent, self._name, self.final.name)
            self.committed = True
            os.fsync(self._parent)
        except FileExistsError as why:
            raise ImageExists(f"{self.final} exists already") from why
        except OSError as why:
            error = disk.writing_error(why, self.final.parent, self._parent)
            if self.committed:
                self.uncommit()
            raise error from why
        # Only now: a stage is never without an owner. One left behind by a crash is harmless.
        with suppress(OSError):
            os.unlink(names.OWNER, dir_fd=self.fd)
        return self.final

    def uncommit(self) -> None:
        """Take the image back: it is a stage again, as if `commit` had not been called.

        Raises:
            WriteFailed: it could not be renamed; the image is still there.
        """
        if not self.committed:
            return
        try:
            if not disk.present(self.fd, names.OWNER):
                os.close(self._lock)
                self._lock = owner.claim(self.fd, self._owner)
            disk.rename_into_place(self._parent, self.final.name, self._name)
            self.committed = False
            os.unlink(names.MANIFEST, dir_fd=self.fd)
            os.fsync(self._parent)
        except OSError as why:
            raise disk.writing_error(why, self.final.parent, self._parent) from why

    def discard(self) -> None:
        """Remove the stage with all that is in it; a committed image is never removed.

        Raises:
            WriteFailed: something could not be removed.
        """
        try:
            if self._parent >= 0 and not self.committed and disk.present(self._parent, self._name):
                shutil.rmtree(self._name, dir_fd=self._parent)
        except OSError as why:
            raise WriteFailed(f"{self._path} could not be removed: {why.strerror}") from why
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the open folders; what is on the disk stays as it is."""
        for fd in (self._lock, self.logs_fd, self.criu_fd, self.fd, self._parent):
            if fd >= 0:
                os.close(fd)
        self._lock = self.logs_fd = self.criu_fd = self.fd = self._parent = -1

    @property
    def _path(self) -> Path:
        return self.final if self.committed else self.final.parent / self._name

    def _make(self, owner_text: str) -> None:
        if disk.present(self._parent, self.final.name):
            raise ImageExists(f"{self.final} exists already")
        self.fd = disk.new_folder(self._parent, self._name)
        self._owner = owner_text
        self._lock = owner.claim(self.fd, owner_text)
        self.criu_fd = disk.new_folder(self.fd, names.CRIU_DIR)
        self.logs_fd = disk.new_folder(self.fd, names.LOGS_DIR)

    def _write_manifest(self, data: bytes) -> None:
        if disk.present(self.fd, names.MANIFEST):
            os.unlink(names.MANIFEST, dir_fd=self.fd)
        fd = disk.new_file(self.fd, names.MANIFEST)
        try:
            disk.write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)


def sweep(folder: Path, alive: Callable[[str], bool], *, dry_run: bool = False) -> tuple[Path, ...]:
    """Remove the stages in `folder` that nobody writes any more, and return their paths.

    A stage goes only if it is this user's, its lock is free and `alive`, given the text its
    owner left, says no. What cannot be removed is left and not named. `dry_run` only names them.
    """
    removed = []
    try:
        parent = os.open(folder, disk.FOLDER_FLAGS)
    except OSError:
        return ()
    try:
        with os.scandir(parent) as found:
            stages = sorted(entry.name for entry in found if names.is_stage(entry.name))
        for name in stages:
            with suppress(OSError):
                if _sweepable(parent, name, alive):
                    if not dry_run:
                        shutil.rmtree(name, dir_fd=parent)
                    removed.append(folder / name)
    finally:
        os.close(parent)
    return tuple(removed)


def _sweepable(parent: int, name: str, alive: Callable[[str], bool]) -> bool:
    fd = os.open(name, disk.FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    try:
        return os.fstat(fd).st_uid == os.geteuid() and owner.abandoned(fd, alive)
    finally:
        os.close(fd)


def _reachable(path: Path, fd: int) -> Path:
    return path if len(os.fsencode(path)) <= _LONGEST_PATH else Path(f"/proc/self/fd/{fd}")
