"""Files that an image carries, on the host where their job comes back.

Looked for and made anew before a restore. A file is made without a name and gets its names when it
is whole, so that nobody ever meets half of one.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from gpuckpt.tools import folders, sparse
from gpuckpt.tools.mappings import inodes
from gpuckpt.tools.procfs import numbers
from gpuckpt.tools.sparse import Reading
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from gpuckpt.model import CarriedFile

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Identity(Value, frozen=True):
    """What a name means now."""

    device: int
    inode: int
    regular: bool
    mode: int
    uid: int
    gid: int
    size: int
    folder: bool = False


class Putting:
    """The places of carried files on this host, and who has them by the /proc at `root`."""

    def __init__(self, root: Path) -> None:
        """Touch nothing yet."""
        self.root = root

    def identity(self, path: str) -> Identity | None:
        """Return what a name means now, None if nothing."""
        try:
            seen = os.lstat(path)
        except OSError:
            return None
        mode, regular = stat.S_IMODE(seen.st_mode), stat.S_ISREG(seen.st_mode)
        return Identity(
            device=seen.st_dev,
            inode=seen.st_ino,
            regular=regular,
            mode=mode,
            uid=seen.st_uid,
            gid=seen.st_gid,
            size=seen.st_size,
            folder=stat.S_ISDIR(seen.st_mode),
        )

    def make_folder(self, path: str, mode: int, uid: int, gid: int) -> tuple[int, int]:
        """Make a folder, following no link; see tools/folders.py."""
        return folders.make(path, mode, uid, gid)

    def remove_folder(self, path: str) -> None:
        """Remove a folder unless something lies in it; see tools/folders.py."""
        folders.remove(path)

    def matches(self, path: str, file: CarriedFile) -> bool:
        """Whether the bytes at `path` are those of `file`: the holes are where zeros may be."""
        digest = blake3()
        try:
            with Reading(path) as source:
                if os.fstat(source.fd).st_size != file.size:
                    return False
                here = sparse.extents(source.fd, file.size)
                if any(
                    piece.strip(b"\0") for piece in source.pieces(sparse.beyond(here, file.extents))
                ):
                    return False
                for piece in source.pieces(file.extents):
                    digest.update(piece)
        except OSError:
            return False
        return digest.hexdigest() == file.digest

    def users(self, files: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return those files, by device and inode, that a process has open or mapped, and who."""
        found: dict[tuple[int, int], int] = {}
        for pid in numbers(self.root) if files else ():
            process = f"{self.root}/{pid}"
            with suppress(OSError):
                used = set(inodes(process))
                for fd in numbers(f"{process}/fd"):
                    with suppress(OSError):
                        seen = os.stat(f"{process}/fd/{fd}")  # noqa: PTH116 - cheaper
                        used.add((seen.st_dev, seen.st_ino))
                found |= dict.fromkeys(used.intersection(files), pid)
        return found

    def room(self, folder: str) -> int | None:
        """Return the bytes that fit into a folder, None if there is none that takes names."""
        if not os.access(folder, os.W_OK | os.X_OK) or not os.path.isdir(folder):  # noqa: PTH112
            return None
        try:
            seen = os.statvfs(folder)
        except OSError:  # a dead filesystem takes none either
            return None
        return seen.f_bavail * seen.f_frsize if seen.f_blocks else 1 << 62  # a tmpfs without limit

    def make(self, file: CarriedFile, source: int) -> int:
        """Make the file, nameless, of the bytes that `source` gives, and return it open.

        Raises:
            OSError: it cannot be made, or `source` ended too early.
        """
        folder = os.path.dirname(file.path)  # noqa: PTH120 - paths may hold any bytes
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, file.size)
            for offset, length in file.extents:
                sparse.fill(fd, source, offset, length)
            os.fchown(fd, file.uid, file.gid)
            os.fchmod(fd, file.mode)
            os.utime(fd, ns=(file.mtime_ns, file.mtime_ns))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def name(self, fd: int, path: str) -> None:
        """Give an open file a name that nothing has.

        Raises:
            OSError: FileExistsError if something has it.
        """
        folder, _, name = path.rpartition("/")
        place = os.open(folder or "/", _FOLDER)
        try:
            # with a folder's descriptor, or Python 3.11 links the link in /proc itself
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=place, dst_dir_fd=place)
        finally:
            os.close(place)

    def link(self, path: str, name: str) -> None:
        """Give the file at `path` a further name that nothing has.

        Raises:
            OSError: FileExistsError if something has it.
        """
        os.link(path, name, follow_symlinks=False)

    def move(self, path: str, name: str) -> None:
        """Rename a file to a name that nothing has.

        Raises:
            OSError: FileExistsError if something has it.
        """
        os.link(path, name, follow_symlinks=False)
        os.unlink(path)  # noqa: PTH108 - paths may hold any bytes
