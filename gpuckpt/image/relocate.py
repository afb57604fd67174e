"""The same manifest with other paths: those of a host where things lie elsewhere.

CRIU's images are changed by the same rule on their way to CRIU. What a program has in its own
memory, arguments and environment stays, and so does where its Python imports from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.outside import FolderRecord, Outside
    from gpuckpt.model import CarriedFile


class Relocation(Value, frozen=True):
    """Pairs of paths, OLD and NEW: what is OLD or below it is NEW or below that."""

    pairs: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is elsewhere."""
        return bool(self.pairs)

    def path(self, path: str) -> str:
        """Return where a path is here; of several pairs the one that fits closest decides."""
        for old, new in sorted(self.pairs, key=lambda pair: -len(pair[0])):
            if path == old:
                return new
            if path.startswith(f"{old.rstrip('/')}/"):
                return f"{new.rstrip('/')}/{path[len(old.rstrip('/')) + 1 :]}"
        return path

    def unused(self, manifest: Manifest) -> tuple[str, ...]:
        """Return what is OLD in a pair and no path of the image."""
        known = set(_paths(manifest))
        return tuple(
            old
            for old, _ in self.pairs
            if not any(path == old or path.startswith(f"{old.rstrip('/')}/") for path in known)
        )

    def crowded(self, manifest: Manifest) -> tuple[str, ...]:
        """Return the paths that several of the image would become."""
        found: dict[str, str] = {}
        for path in set(_paths(manifest)):
            new = self.path(path)
            if found.setdefault(new, path) != path:
                found[new] = ""
        return tuple(sorted(new for new, path in found.items() if not path))

    def manifest(self, manifest: Manifest) -> Manifest:
        """Return the manifest with every path as it is here."""
        if not self:
            return manifest
        carried = tuple(self._carried(one) for one in manifest.carried)
        start = manifest.start
        return replace(
            manifest,
            tree=tuple(
                replace(
                    one,
                    exe=self.path(one.exe),
                    cwd=self.path(one.cwd),
                    root=self.path(one.root),
                )
                for one in manifest.tree
            ),
            outside=self._outside(manifest.outside, carried),
            carried=carried,
            engine=replace(
                manifest.engine,
                libraries=tuple(
                    replace(one, path=self.path(one.path)) for one in manifest.engine.libraries
                ),
            ),
            models=tuple(replace(one, path=self.path(one.path)) for one in manifest.models),
            tracked=tuple(replace(one, path=self.path(one.path)) for one in manifest.tracked),
            start=start
            and replace(
                start,
                program=self.path(start.program),
                stdout=self.path(start.stdout),
                stderr=self.path(start.stderr),
            ),
        )

    def _carried(self, one: CarriedFile) -> CarriedFile:
        names = tuple(self.path(name) for name in one.names)
        return replace(one, names=names, link=self.path(one.link))

    def _outside(self, outside: Outside, carried: tuple[CarriedFile, ...]) -> Outside:
        sockets = tuple(self.path(one) for one in outside.sockets)
        made = {*sockets, *(one.path for one in carried)}
        return replace(
            outside,
            files=tuple(replace(one, path=self.path(one.path)) for one in outside.files),
            sockets=sockets,
            servers=tuple(self.path(one) for one in outside.servers),
            locks=tuple(replace(one, path=self.path(one.path)) for one in outside.locks),
            remaps=tuple(
                replace(one, path=self.path(one.path), name=self.path(one.name))
                for one in outside.remaps
            ),
            folders=tuple(self._folders(outside.folders, made)),
        )

    def _folders(self, folders: tuple[FolderRecord, ...], made: set[str]) -> Iterator[FolderRecord]:
        """Give the folders above what is made here: those above OLD mean nothing any more."""
        here = {self.path(one.path): one for one in folders}
        for path in sorted(here):
            if any(one.startswith(f"{path}/") for one in made):
                yield replace(here[path], path=path)


def _paths(manifest: Manifest) -> Iterator[str]:
    """Give every path that CRIU or a restore works with."""
    outside = manifest.outside
    yield from (one.path for one in outside.files)
    yield from outside.sockets
    yield from (path for path in outside.servers if path.startswith("/"))
    yield from (name for one in outside.remaps for name in (one.path, one.name))
    for one in manifest.carried:
        yield from (*one.names, *([one.link] if one.link else ()))
    yield from (one.path for one in manifest.models)
    yield from (one.path for one in manifest.tracked)
    for task in manifest.tree:
        yield from (task.exe, task.cwd)
