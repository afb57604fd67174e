"""What the files of a tree are to it: run, mapped, open, where it works, where its root is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.taking.references import Print

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuckpt.flow.sight.along import Along
    from gpuckpt.model import Tree
    from gpuckpt.tools.pidspace import Space
    from gpuckpt.tools.surroundings import Surroundings
    from gpuckpt.tools.usedfiles import UsedFile

_UNKNOWN: Final = Print()


class Usage:
    """The files of a tree by the names that it knows."""

    def __init__(
        self,
        tree: Tree,
        around: Mapping[int, Surroundings],
        files: Along,
        prints: Callable[[UsedFile], Print],
        space: Space | None,
    ) -> None:
        """Read nothing; `prints` tells one file from others, and may have to read it."""
        self.reach: Callable[[str], str] = space.reach if space is not None else str
        named: Callable[[str], str] = space.named if space is not None else str
        self._prints = prints
        self._kept = {named(name): one for one in files.kept for name in one.names}
        self._uses: dict[str, dict[str, None]] = {}
        for process in tree.processes:
            self._add(process.exe, "exe")
            self._add(process.cwd, "cwd")
            self._add(around[process.pid].root, "root")
        for one in (*files.kept, *(taken.file for taken in files.taken)):
            for use, true in (("mapped", one.mapped), ("open", one.opened)):
                for name in one.names if true else ():
                    self._add(named(name), use)

    def uses(self, path: str) -> tuple[str, ...]:
        """Return what a file or folder is to the tree."""
        return tuple(self._uses.get(path, ()))

    def of(self, path: str) -> Print:
        """Return what tells a file from others, if it stays outside."""
        file = self._kept.get(path)
        return self._prints(file) if file is not None else _UNKNOWN

    def _add(self, path: str, use: str) -> None:
        self._uses.setdefault(path, {})[use] = None
