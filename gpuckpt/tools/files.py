"""Files of this host: as CRIU will compare them, and the names that CRIU leaves behind."""

from __future__ import annotations

import os
import re
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from gpuckpt.tools.digest import Digest, digest
from gpuckpt.tools.locks import FileLock, on_file
from gpuckpt.tools.silent import silent
from gpuckpt.tools.surroundings import packages
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# where linkers put notes; a build-id further back than this would be a strange file
LARGEST_HEADERS = 1 << 20
LARGEST_NOTES = 64 << 10
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_EHDR64 = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR64 = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
# 4.2.1: a link to a file that had lost its name, and a deleted file while it is brought back
_REMAP: Final = re.compile(r"link_remap\.\d+|.+\.cr\.[0-9a-f]+\.ghost")


class HostFile(Value, frozen=True):
    """A file as it is now; `build_id` is hex, empty for what is no ELF file or has none."""

    path: str
    size: int
    mode: int
    mtime_ns: int
    build_id: str
    uid: int | None = None
    gid: int | None = None


class Remap(Value, frozen=True):
    """A name that CRIU has made for a file without one; `bytes` on disk."""

    path: str
    device: int
    inode: int
    bytes: int


class Files:
    """The files of this host."""

    def look(self, path: str, *, build_id: bool) -> HostFile | None:
        """Return what is at `path`, None if nothing can be reached there.

        The build-id is read only when asked for: it costs opening the file.
        """
        try:
            found = os.stat(path)  # noqa: PTH116 - paths from /proc may hold any bytes
        except OSError:
            return None
        identity = _build_id(path) if build_id and stat.S_ISREG(found.st_mode) else ""
        told = found.st_size, found.st_mode, found.st_mtime_ns
        return HostFile(path, *told, identity, found.st_uid, found.st_gid)

    def digest(self, path: str, *, full: bool, on_bytes: Callable[[int], None]) -> Digest:
        """Return the digest of a regular file; see tools/digest.py.

        Raises:
            OSError: it cannot be read.
        """
        return digest(path, full=full, on_bytes=on_bytes)

    def writable(self, folder: str) -> bool:
        """Whether names can be made in a folder: it is there, ours, not mounted read-only."""
        return os.access(folder, os.W_OK | os.X_OK) and os.path.isdir(folder)  # noqa: PTH112

    def locks(self, path: str) -> tuple[FileLock, ...]:
        """Return the locks that processes of this host have on a file now."""
        return on_file(Path("/proc"), path)

    def packages(self, prefix: str) -> tuple[str, ...] | None:
        """Return the Python packages installed below a prefix; None if it is not there."""
        return packages(prefix)

    def silent(self, paths: Iterable[str], pids: Iterable[int] = ()) -> tuple[str, ...]:
        """Return the filesystems of paths and processes that do not answer; see tools/silent.py."""
        return silent(Path("/proc"), paths, pids)

    def remaps(self, folder: str) -> tuple[Remap, ...]:
        """Return the names in a folder that a CRIU has made, sorted; none if it is gone."""
        found = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _REMAP.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    seen = entry.stat(follow_symlinks=False)
                    made = Remap(entry.path, seen.st_dev, seen.st_ino, seen.st_blocks * 512)
                    found.append(made)
        return tuple(sorted(found, key=lambda one: one.path))

    def remove(self, path: str) -> None:
        """Remove one name; nothing if it is gone.

        Raises:
            OSError: it may not be removed.
        """
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - paths from /proc may hold any bytes


def _build_id(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            return _read_build_id(file)
    except (OSError, struct.error):
        return ""


def _read_build_id(file: IO[bytes]) -> str:
    """Find NT_GNU_BUILD_ID among the note segments of a little-endian 64-bit ELF file."""
    head = file.read(_EHDR64.size)
    if len(head) < _EHDR64.size or head[:6] != b"\x7fELF\x02\x01":
        return ""
    fields = _EHDR64.unpack(head)
    offset, entry_size, count = fields[5], fields[9], fields[10]
    if entry_size < _PHDR64.size or entry_size * count > LARGEST_HEADERS:
        return ""
    file.seek(offset)
    table = file.read(entry_size * count)
    for start in range(0, len(table) - _PHDR64.size + 1, entry_size):
        kind, _, at, _, _, size, _, _ = _PHDR64.unpack_from(table, start)
        if kind == _PT_NOTE and size <= LARGEST_NOTES:
            file.seek(at)
            if found := _in_notes(file.read(size)):
                return found
    return ""


def _in_notes(notes: bytes) -> str:
    at = 0
    while at + _NOTE.size <= len(notes):
        name_size, size, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        value_at = name_at + _padded(name_size)
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0":
            return notes[value_at : value_at + size].hex()
        at = value_at + _padded(size)
    return ""


def _padded(size: int) -> int:
    return (size + 3) & ~3
