"""Files that an image carries, on the host where their job comes back.

Looked for and made anew before a restore. A file is made without a name and gets its names when it
is whole, so that nobody ever meets half of one.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.tools import cutting, folders, sparse
from gpuckpt.tools.mappings import inodes
from gpuckpt.tools.procfs import numbers
from gpuckpt.tools.sparse import Reading
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.cutting import Cut


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
    mtime_ns: int = 0


class User(Value, frozen=True):
    """A process that has a file open or mapped; `writes`: so that it can write to it."""

    pid: int
    writes: bool


def _go_on() -> None:
    """Check nothing."""


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
            mtime_ns=seen.st_mtime_ns,
        )

    def make_folder(self, path: str, mode: int, uid: int, gid: int) -> tuple[int, int]:
        """Make a folder, following no link; see tools/folders.py."""
        return folders.make(path, mode, uid, gid)

    def remove_folder(self, path: str) -> None:
        """Remove a folder unless something lies in it; see tools/folders.py."""
        folders.remove(path)

    def matches(self, path: str, file: CarriedFile, check: Callable[[], None] = _go_on) -> bool:
        """Whether the bytes at `path`, as many as `file` had, are those of `file`.

        The holes are where zeros may be.
        """
        digest = blake3()
        try:
            with Reading(path) as source:
                if os.fstat(source.fd).st_size < file.size:
                    return False
                here = sparse.extents(source.fd, file.size)
                if any(
                    piece.strip(b"\0") for piece in source.pieces(sparse.beyond(here, file.extents))
                ):
                    return False
                for piece in source.pieces(file.extents):
                    digest.update(piece)
                    check()
        except OSError:
            return False
        return digest.hexdigest() == file.digest

    def users(self, files: Collection[tuple[int, int]]) -> dict[tuple[int, int], User]:
        """Return those files, by device and inode, that a process has, and who.

        That is one that writes to it, if there is one.
        """
        found: dict[tuple[int, int], User] = {}
        for pid in numbers(self.root) if files else ():
            with suppress(OSError):
                for key, writes in self._used(pid):
                    if key in files and (key not in found or (writes and not found[key].writes)):
                        found[key] = User(pid, writes)
        return found

    def _used(self, pid: int) -> Iterator[tuple[tuple[int, int], bool]]:
        """Go through what a process has mapped and open, and whether it can write to that."""
        process = f"{self.root}/{pid}"
        yield from inodes(process)
        for fd in numbers(f"{process}/fd"):
            with suppress(OSError):
                link = f"{process}/fd/{fd}"
                seen = os.stat(link)  # noqa: PTH116 - cheaper
                # the link's own mode says how it was opened
                writes = bool(os.lstat(link).st_mode & stat.S_IWUSR)
                yield (seen.st_dev, seen.st_ino), writes

    def room(self, folder: str) -> int | None:
        """Return the bytes that fit into a folder, None if there is none that takes names."""
        if not os.access(folder, os.W_OK | os.X_OK) or not os.path.isdir(folder):  # noqa: PTH112
            return None
        try:
            os.close(folders.opened(folder))  # where it cannot be opened safely, nothing is made
            seen = os.statvfs(folder)
        except OSError:  # a dead filesystem takes none either
            return None
        return seen.f_bavail * seen.f_frsize if seen.f_blocks else 1 << 62  # a tmpfs without limit

    def make(
        self, file: CarriedFile, source: int, spare: str, check: Callable[[], None] = _go_on
    ) -> int:
        """Make the file, nameless, of the bytes that `source` gives, and return it open.

        Where files cannot be nameless it is called `spare`, in the folder it belongs to. `check` is
        called between pieces, here and below, and may raise.

        Raises:
            OSError: it cannot be made, or `source` ended too early.
        """
        with _folder(file.path) as (place, _), cutting.unnamed(place, spare) as fd:
            os.ftruncate(fd, file.size)
            for offset, length in file.extents:
                sparse.fill(fd, source, offset, length, check)
            os.fchown(fd, file.uid, file.gid)
            os.fchmod(fd, file.mode)
            os.utime(fd, ns=(file.mtime_ns, file.mtime_ns))
            return fd

    def name(self, fd: int, path: str) -> None:
        """Give an open file a name that nothing has.

        Raises:
            OSError: FileExistsError if something has it.
        """
        with _folder(path) as (place, name):
            cutting.give_name(fd, place, name)

    def link(self, path: str, name: str) -> None:
        """Give the file at `path` a further name that nothing has.

        Raises:
            OSError: FileExistsError if something has it.
        """
        with _folder(path) as (place, old), _folder(name) as (other, new):
            os.link(old, new, src_dir_fd=place, dst_dir_fd=other, follow_symlinks=False)

    def move(self, path: str, name: str) -> None:
        """Rename a file, in its folder, to a name that nothing has.

        Raises:
            OSError: FileExistsError if something has it.
        """
        with _folder(path) as (place, old):
            new = cutting.split(name)[1]
            os.link(old, new, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
            os.unlink(old, dir_fd=place)

    def keep_later(self, cut: Cut, check: Callable[[], None] = _go_on) -> None:
        """Write a file's later bytes beside it; see tools/cutting.py, as for the next two."""
        cutting.keep(cut, check)

    def shorten(self, cut: Cut, mtime_ns: int) -> None:
        """Take its later bytes from a file."""
        cutting.shorten(cut, mtime_ns)

    def rejoin(self, cut: Cut) -> None:
        """Give a file its later bytes back."""
        cutting.rejoin(cut)


@contextmanager
def _folder(path: str) -> Iterator[tuple[int, str]]:
    """Give the folder that a path is in, open, and the name in it."""
    folder, name = cutting.split(path)
    place = folders.opened(folder)
    try:
        yield place, name
    finally:
        os.close(place)
