"""Files that an image carries: those in memory, and those that have lost the name the job knows.

Read at a dump, while the tree is frozen; tools/putting.py has what a restore does with them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from blake3 import blake3
from msgspec.structs import replace

from gpuckpt.model import Carriage, CarriedFile
from gpuckpt.tools import sparse
from gpuckpt.tools.descriptors import descriptors
from gpuckpt.tools.mappings import mappings
from gpuckpt.tools.putting import Putting
from gpuckpt.tools.sparse import Reading
from gpuckpt.tools.usedfiles import devices, is_program, listed, used

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpuckpt.tools.usedfiles import Listing, Opened, UsedFile

_OURS: Final = re.compile(r"link_remap\.\d+")
_NOTHING: Final[Mapping[str, Carriage]] = MappingProxyType({})


class Carried(Putting):
    """The files of this host that images carry, at a dump and at a restore."""

    def used(self, pids: Iterable[int], reach: Callable[[str], str] = str) -> tuple[UsedFile, ...]:
        """Return the regular files that processes have open or mapped; see tools/usedfiles.py.

        `reach` gives the path by which this process finds a file that they know.
        """
        folders = ((pid, f"{self.root}/{pid}") for pid in pids)
        return used(self.root, ((pid, descriptors(at), mappings(at)) for pid, at in folders), reach)

    def used_of(
        self, tree: Iterable[Opened], reach: Callable[[str], str] = str
    ) -> tuple[UsedFile, ...]:
        """Return the same of processes whose descriptors and mappings are known already."""
        return used(self.root, tree, reach)

    def listed(self, path: str, most: int, leave: Iterable[str] = ()) -> Listing:
        """Return the regular files at a path, or below it.

        Raises:
            OSError: there is nothing, or a folder cannot be read.
        """
        return listed(path, most, leave)

    def is_program(self, path: str) -> bool:
        """Whether a file is a program or a library."""
        return is_program(path)

    def readable(self, path: str) -> str:
        """Return why a file cannot be read, "" if it can be: on some mounts root is nobody."""
        try:
            with Reading(path):
                return ""
        except OSError as why:
            return why.strerror or str(why)

    def examine(
        self,
        paths: Mapping[str, bool],
        links: Collection[str],
        pids: Iterable[int] = (),
        work: Mapping[str, Carriage] = _NOTHING,
    ) -> tuple[CarriedFile, ...]:
        """Describe files, each once, however many names it has.

        `paths` are names the job, `pids`, knows and whether the very content is needed, `links` are
        names that CRIU made, `work` has names of what is carried for other reasons: of those files
        no other names are looked for. A name that is gone is left out, one that CRIU made must be
        there.

        Raises:
            OSError: a file cannot be read.
        """
        found: dict[tuple[int, int], CarriedFile] = {}
        names = _Names()
        whys = {**dict.fromkeys((*links, *paths), Carriage.NEEDED), **work}
        for path, why in whys.items():
            linked = path in links
            exact = linked or paths.get(path, False)
            try:
                one = _describe(path, None if path in work else names, linked=linked, exact=exact)
            except FileNotFoundError:
                if linked:
                    raise
                continue
            if one is not None:
                key = one.device, one.inode
                found[key] = _merged(found[key], one) if key in found else replace(one, why=why)
        memory, _ = devices(self.root, pids)
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


def _describe(path: str, names: _Names | None, *, linked: bool, exact: bool) -> CarriedFile | None:
    with Reading(path) as file:
        seen = os.fstat(file.fd)
        if not stat.S_ISREG(seen.st_mode):
            return None
        known = [] if linked else [path]
        if names is not None and seen.st_nlink > len(known):
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
