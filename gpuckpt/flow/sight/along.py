"""Which files go along in an image, and which stay where they are and are only known by digests.

What the job writes goes along: what it has open for writing, and what lies in /tmp or where it
works, is its user's, and is neither software nor large data that was there before it. The same
choice is made twice: before a dump for its forecast, and of the frozen tree for its image.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.model import Carriage
from gpuckpt.tools.pidspace import own_memory
from gpuckpt.tools.usedfiles import began
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.flow.request import FileChoice
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Tree
    from gpuckpt.tools.pidspace import Space
    from gpuckpt.tools.usedfiles import UsedFile

# a manifest names every one of them
MOST: Final = 20_000
# what is larger, and was there before the job, is data that it was given
LARGE: Final = 64 << 20
_TEMPORARY: Final = "/tmp"  # noqa: S108 - where programs put what they make for a while
# who works here has software and settings around him, and no files of his own
_SYSTEM: Final = frozenset({"/", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/boot"})


class Owner(Value, frozen=True):
    """What makes a file a job's own: its users, the folders it works in, and when it began."""

    users: frozenset[int]
    folders: tuple[str, ...]
    began: int


class Taken(Value, frozen=True):
    """A file that goes along; `sharp`: a restore needs just these bytes of it."""

    file: UsedFile
    why: Carriage
    sharp: bool = False


class Missed(Value, frozen=True):
    """A path to be included that cannot be, and why: missing, kind, many or its error."""

    path: str
    why: str


class Along(Value, frozen=True):
    """What goes along, and what stays.

    `taken` are the files that go along, CRIU's own left out, `kept` those that the tree uses and
    that stay. `unread` cannot be read, and why; `lost` have no name that leads to them. `missed` of
    what was to be included is not there; `others` counts what in it is neither file nor folder.
    """

    taken: tuple[Taken, ...] = ()
    kept: tuple[UsedFile, ...] = ()
    unread: tuple[Missed, ...] = ()
    lost: tuple[str, ...] = ()
    missed: tuple[Missed, ...] = ()
    others: int = 0

    @property
    def bytes(self) -> int:
        """What they come to; shared memory is counted with memory."""
        return sum(one.file.bytes for one in self.taken if not _in_memory(one.file))

    @property
    def largest(self) -> UsedFile | None:
        """The largest of them."""
        files = (one.file for one in self.taken if not _in_memory(one.file))
        return max(files, key=lambda one: one.bytes, default=None)


def owner(tree: Tree) -> Owner:
    """Say what makes a file a tree's own."""
    folders = {process.cwd for process in tree.processes} - _SYSTEM
    return Owner(
        frozenset(process.uid for process in tree.processes),
        tuple(sorted({_TEMPORARY, *(one for one in folders if one.startswith("/"))})),
        began(tree.root.ref),
    )


def along(
    tools: Toolbox,
    used: Iterable[UsedFile],
    tree: Tree,
    choice: FileChoice,
    *,
    space: Space | None = None,
    leave: Iterable[str] = (),
) -> Along:
    """Sort the files that a tree uses, and look up what is to be included.

    `leave` are paths of which nothing is taken: an image does not carry itself.
    """
    named = space.named if space is not None else str
    whose, found, kept, lost = owner(tree), dict[tuple[int, int], Taken](), [], []
    named = space.named if space is not None else str
    for one in used:
        why = reason(one, choice, whose, tools.carried.is_program, named)
        if why is None:
            kept.append(one)
        elif one.names:
            found[one.key] = Taken(one, why, sharp=_sharp(one, named))
        elif why is not Carriage.NEEDED:
            lost.append(one.path)
    more, missed, others = _included(tools, choice, space, frozenset(leave))
    for one in more:
        found[one.key] = _with(found.get(one.key), one)
    return Along(
        taken=tuple(found.values()),
        kept=tuple(one for one in kept if one.key not in found),
        lost=tuple(lost),
        missed=missed,
        others=others,
    )


def tried(tools: Toolbox, found: Along, space: Space | None = None) -> Along:
    """Try to open what goes along: on some mounts root is nobody, and better told beforehand."""
    named = space.named if space is not None else str
    names = [one.file.names[0] for one in found.taken]
    whys = ((name, tools.carried.readable(name)) for name in names)
    return replace(found, unread=tuple(Missed(named(name), why) for name, why in whys if why))


def reason(
    one: UsedFile,
    choice: FileChoice,
    whose: Owner,
    is_program: Callable[[str], bool],
    named: Callable[[str], str] = str,
) -> Carriage | None:
    """Return why a file goes along, None if it stays."""
    names = tuple(named(name) for name in one.names) or (one.path,)
    if _in_memory(one) and _sharp(one, named):
        return Carriage.NEEDED
    if any(excluded(name, choice.exclude) for name in names):
        return None
    if choice.mode != "none" and (one.written or _own(one, names, whose, is_program)):
        return Carriage.WRITTEN
    if _in_memory(one):
        return Carriage.NEEDED
    return Carriage.INCLUDED if choice.mode == "all" else None


def excluded(path: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches a path or a folder above it; one without a slash matches names."""
    parts = path.split("/")
    above = ["/".join(parts[: count + 1]) for count in range(1, len(parts))]
    return any(
        fnmatch.fnmatchcase(name if "/" in pattern else name.rpartition("/")[2], _whole(pattern))
        for pattern in patterns
        for name in above
    )


def _whole(pattern: str) -> str:
    """Let a pattern with a slash in its middle match below any folder."""
    short = pattern.rstrip("/")
    return f"*/{short}" if "/" in pattern and not short.startswith(("/", "*")) else short


def _sharp(one: UsedFile, named: Callable[[str], str]) -> bool:
    """Whether a file in memory is shared memory: mapped, or where such is kept."""
    return one.memory and (one.shared or any(own_memory(named(name)) for name in one.names))


def _own(
    one: UsedFile, names: Iterable[str], whose: Owner, is_program: Callable[[str], bool]
) -> bool:
    """Whether a file that is only read is the job's own: by its user, place, time and kind."""
    if one.uid not in whose.users or not one.names:
        return False
    places = [place for place in whose.folders if any(_below(name, place) for name in names)]
    if not places or one.mtime_ns >= whose.began:
        return bool(places)
    given = one.size > LARGE and _TEMPORARY not in places
    return not given and not (one.mapped and is_program(one.names[0]))


def _below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _in_memory(one: UsedFile) -> bool:
    """Whether its bytes are memory of the job, which no restore can do without."""
    return one.memory and (one.opened or one.shared)


def _with(before: Taken | None, one: UsedFile) -> Taken:
    """Add the names by which a file was to be included to those by which it is used."""
    if before is None:
        return Taken(one, Carriage.INCLUDED)
    names = dict.fromkeys((*before.file.names, *one.names))
    return replace(before, file=replace(before.file, names=tuple(names)))


def _included(
    tools: Toolbox, choice: FileChoice, space: Space | None, leave: frozenset[str]
) -> tuple[list[UsedFile], tuple[Missed, ...], int]:
    """Return the files that were asked for, what of it cannot be had, and what is no file."""
    found: list[UsedFile] = []
    missed: list[Missed] = []
    others = 0
    for path in choice.include:
        try:
            there = space.reach(path) if space is not None else path
            seen = tools.carried.listed(there, MOST - len(found), leave)
        except OSError as why:
            gone = isinstance(why, FileNotFoundError)
            missed.append(Missed(path, "missing" if gone else why.strerror or str(why)))
            continue
        if not seen.whole:
            missed.append(Missed(path, "many"))
        elif not seen.files and seen.others:
            missed.append(Missed(path, "kind"))
        others += seen.others
        found += [one for one in seen.files if not excluded(one.path, choice.exclude)]
    return found, tuple(missed), others
