"""Files that an image carries: those in memory, and those that have lost the name the job knows.

Read at a dump, while the tree is frozen; tools/putting.py has what a restore does with them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from blake3 import blake3
from msgspec.structs import replace

from gpuckpt.model import CarriedFile
from gpuckpt.tools import sparse
from gpuckpt.tools.descriptors import descriptors
from gpuckpt.tools.mappings import behind, mappings
from gpuckpt.tools.places import KEPT, mounts
from gpuckpt.tools.putting import Putting
from gpuckpt.tools.sparse import Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

SHM: Final = "/dev/shm/"  # noqa: S108 - the system's, not a temporary file of ours
_OURS: Final = re.compile(r"link_remap\.\d+")


class Carried(Putting):
    """The files of this host that images carry, at a dump and at a restore."""

    def held(self, pids: Collection[int]) -> dict[str, bool]:
        """Return the files in memory that processes have open or mapped shared, by their names.

        The value says whether they have it mapped, or it lies where shared memory is kept: then
        a restore needs its very content.
        """
        memory = self._memory(pids)
        found: dict[str, bool] = {}
        for pid in pids:
            process = f"{self.root}/{pid}"
            for area in mappings(process):
                if area.shared and not area.deleted and area.target.startswith("/"):
                    file = behind(process, area)
                    if file is not None and file.regular and file.device in memory:
                        found[area.target] = True
            for fd in descriptors(process):
                if fd.kind == "file" and not fd.deleted and fd.device in memory:
                    found.setdefault(fd.target, fd.target.startswith(SHM))
        return found

    def examine(
        self, paths: Mapping[str, bool], links: Collection[str], pids: Iterable[int] = ()
    ) -> tuple[CarriedFile, ...]:
        """Describe files, each once, however many names it has.

        `paths` are names the job, `pids`, knows and whether the very content is needed, `links` are
        names that CRIU made. A name that is gone is left out, one that CRIU made must be there.

        Raises:
            OSError: a file cannot be read.
        """
        found: dict[tuple[int, int], CarriedFile] = {}
        names = _Names()
        for path, exact in [*((link, True) for link in links), *paths.items()]:
            linked = path in links
            try:
                one = _describe(path, names, linked=linked, exact=exact)
            except FileNotFoundError:
                if linked:
                    raise
                continue
            if one is not None:
                key = one.device, one.inode
                found[key] = _merged(found[key], one) if key in found else one
        memory = self._memory(pids)
        return tuple(replace(one, memory=one.device in memory) for one in found.values())

    def copy(self, file: CarriedFile, into: int) -> str:
        """Write the file's extents one after the other, and return their digest.

        Raises:
            OSError: it cannot be read, or has become another one or shorter.
        """
        with Reading(file.link or file.path) as source:
            seen = os.fstat(source.fd)
            if (seen.st_dev, seen.st_ino) != (file.device, file.inode):
                raise OSError(errno.ESTALE, "another file has its name now", file.path)
            digest = blake3()
            for piece in source.pieces(file.extents):
                digest.update(piece)
                sparse.write_all(into, piece)
        return digest.hexdigest()

    def _memory(self, pids: Iterable[int]) -> set[int]:
        """Return the devices of the file systems that lie in memory, here and for the processes."""
        found: set[int] = set()
        for who in ("self", *pids):
            with suppress(OSError):  # a zombie has no mounts
                known = mounts(f"{self.root}/{who}").values()
                found |= {one.device for one in known if one.filesystem in KEPT}
        return found


class _Names:
    """All names of files, each folder read once."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[int, list[str]]] = {}

    def of(self, folder: str, seen: os.stat_result) -> list[str]:
        """Return the names that a file has in a folder, those CRIU makes left out."""
        if folder not in self._folders:
            known = self._folders[folder] = {}
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not _OURS.fullmatch(entry.name):
                        known.setdefault(entry.inode(), []).append(entry.path)
        found = sorted(self._folders[folder].get(seen.st_ino, ()))
        return [path for path in found if _is(path, seen)]


def _is(path: str, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), seen)
    except OSError:
        return False


def _describe(path: str, names: _Names, *, linked: bool, exact: bool) -> CarriedFile | None:
    with Reading(path) as file:
        seen = os.fstat(file.fd)
        if not stat.S_ISREG(seen.st_mode):
            return None
        known = [] if linked else [path]
        if seen.st_nlink > len(known):
            folder = os.path.dirname(path)  # noqa: PTH120 - paths may hold any bytes
            known += [name for name in names.of(folder, seen) if name != path]
        return CarriedFile(
            names=tuple(known),
            link=path if linked else "",
            device=seen.st_dev,
            inode=seen.st_ino,
            size=seen.st_size,
            mode=stat.S_IMODE(seen.st_mode),
            uid=seen.st_uid,
            gid=seen.st_gid,
            mtime_ns=seen.st_mtime_ns,
            extents=sparse.extents(file.fd, seen.st_size),
            exact=exact,
        )


def _merged(one: CarriedFile, other: CarriedFile) -> CarriedFile:
    names = dict.fromkeys((*one.names, *other.names))
    return replace(one, names=tuple(names), exact=one.exact or other.exact)
