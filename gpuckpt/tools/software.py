"""What a tree computes with: its Pythons and what they have loaded, its libraries, its weights.

All of it is found from outside, by reading /proc and files; how each thing was found is told with
it. The long look comes before a job is frozen, a short one that relies on it while it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.tools import tracked
from gpuckpt.tools.descriptors import descriptors
from gpuckpt.tools.digest import Digest, Digests
from gpuckpt.tools.distributions import Installed, installed
from gpuckpt.tools.imported import MOST, imported
from gpuckpt.tools.interpreters import Interpreter, interpreter, version
from gpuckpt.tools.libraries import Library, beside, libraries
from gpuckpt.tools.loaded import loaded
from gpuckpt.tools.mappings import mappings
from gpuckpt.tools.weights import Use, Weight, weights
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from gpuckpt.model import Process
    from gpuckpt.tools.tracked import Entry, Walk

_OURS: Final = "/dev/shm/"  # noqa: S108 - what lies there travels in the image, and needs no look
# all memory that a look reads at most, of one process of each kind; and where it ends for others
_MOST: Final = 4 << 30
_ENOUGH: Final = 1 << 30


class Survey(Value, frozen=True):
    """All of it.

    `loaded` are the distributions with how each was found (see tools/loaded.py). `modules` are
    files of modules whose names were found in memory; `whole`: all memory that could tell was read.
    `digests` are those of the weights, without what cannot be read.
    """

    pythons: tuple[Interpreter, ...] = ()
    loaded: Mapping[Installed, tuple[str, ...]] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    weights: tuple[Weight, ...] = ()
    digests: Mapping[str, Digest] = field(default_factory=dict)
    used: frozenset[Use] = frozenset()
    modules: frozenset[str] = frozenset()
    whole: bool = True


class Software:
    """The software and the data of this host, under the /proc at `root`."""

    def __init__(self, root: Path) -> None:
        """Look at nothing yet."""
        self.root = root
        self._digests = Digests()
        self._walked: dict[tuple[str, bool], tuple[list[Entry], Walk]] = {}

    def survey(
        self,
        processes: Collection[Process],
        *,
        full: bool,
        before: Survey | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Survey:
        """Look at a tree; with what was seen `before`, only at what may have changed since."""
        uses = {one.pid: frozenset(self._uses(one.pid)) for one in processes}
        used = frozenset[Use]().union(*uses.values())
        same = before is not None and before.used == used
        if before is not None and same:
            found = before
        else:
            kinds = {one.pid: (one.exe, one.argv) for one in processes}
            found = self._engine(uses, kinds, before, lambda: advance(0))
        named = weights(self.root, processes, (one for one in used if _stays(one)))
        known = self._digests.of((one.path for one in named), full=full, advance=advance)
        return Survey(
            pythons=found.pythons,
            loaded=found.loaded,
            libraries=found.libraries,
            weights=tuple(one for one in named if known.get(one.path) is not None),
            digests={path: one for path, one in known.items() if one is not None},
            used=used,
            modules=found.modules,
            whole=found.whole,
        )

    def python(self, program: str) -> str:
        """Return the version of the Python in a file, "" if it is not there."""
        return version(program)

    def installed(self, folder: str, names: Collection[str]) -> Mapping[str, Installed]:
        """Return those of the distributions that are in a folder."""
        return installed(folder, names)

    def beside(self, path: str) -> tuple[str, ...]:
        """Return the versions of a library that are in its folder."""
        return beside(path)

    def digests(self, paths: Iterable[str], *, full: bool) -> Mapping[str, Digest | None]:
        """Return the digest of each file, None for what cannot be read."""
        return self._digests.of(paths, full=full)

    def walk(
        self, path: str, *, full: bool, advance: Callable[[int], None] = lambda _: None
    ) -> Walk | None:
        """Go through a tree, None if there is nothing; OSError if a part cannot be read."""
        before = self._walked.get((path, full))
        found = tracked.walk(path, self._digests, full=full, advance=advance, before=before)
        if found is not None:
            self._walked[path, full] = found
        return found[1] if found is not None else None

    def differences(self, old: bytes, new: bytes) -> list[tuple[str, str]]:
        """Return which paths of two listings are missing, new or changed."""
        return tracked.differences(old, new)

    def _uses(self, pid: int) -> Iterator[Use]:
        folder = f"{self.root}/{pid}"
        try:
            for area in mappings(folder):
                if area.target.startswith("/") and not area.deleted:
                    yield Use(area.target, "written" if area.shared and area.pieces else "mapped")
            for fd in descriptors(folder):
                if fd.kind == "file" and not fd.deleted:
                    yield Use(fd.target, "written" if fd.writes else "open")
        except OSError:  # gone, or nobody may look
            return

    def _engine(
        self,
        uses: Mapping[int, frozenset[Use]],
        kinds: Mapping[int, object],
        before: Survey | None,
        check: Callable[[], None],
    ) -> Survey:
        pythons: dict[int, Interpreter] = {}
        mapped = {
            pid: [one.path for one in used if one.how == "mapped"] for pid, used in uses.items()
        }
        for pid, paths in mapped.items():
            if (python := interpreter(self.root, pid, paths)) is not None:
                pythons[pid] = python
        seen = before if before is not None else self._modules(pythons, kinds, check)
        listed = set(pythons.values())
        used = (one for pid in pythons for one in uses[pid])
        return Survey(
            pythons=tuple(sorted(listed, key=lambda one: (one.program, one.prefix))),
            loaded=loaded(listed, used, seen.modules, whole=seen.whole),
            libraries=libraries(path for paths in mapped.values() for path in paths),
            modules=seen.modules,
            whole=seen.whole,
        )

    def _modules(
        self,
        pythons: Mapping[int, Interpreter],
        kinds: Mapping[int, object],
        check: Callable[[], None],
    ) -> Survey:
        """Read memory: of one process of each kind all that can tell, of its copies some more.

        Ranks and workers are many, started alike, and have imported the same.
        """
        modules: set[str] = set()
        seen: set[object] = set()
        done, whole = 0, True
        copies: list[int] = []
        for pid, python in pythons.items():
            check()
            if kinds[pid] in seen:
                copies.append(pid)
                continue
            seen.add(kinds[pid])
            one = imported(self.root, pid, python.paths, min(_MOST - done, MOST))
            done += one.bytes
            modules |= one.paths
            whole = whole and one.whole
        for pid in copies:
            check()
            one = imported(self.root, pid, pythons[pid].paths, max(0, _ENOUGH - done))
            done += one.bytes
            modules |= one.paths
        return Survey(modules=frozenset(modules), whole=whole)


def _stays(use: Use) -> bool:
    """Whether a file is not in memory that a namespace may have for itself, and is carried."""
    return not use.path.startswith(_OURS)
