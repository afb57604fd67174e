"""The weights that a job works with: files it has open or mapped, or that its command line names.

Most programs read weights once and let go of them, so what is named counts as well: files, folders
of models, and models by the name they have in the cache of Hugging Face. Named files that are
younger than their process are its work, not its model.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gpuckpt.tools import hub
from gpuckpt.tools.environment import paths
from gpuckpt.tools.procfs import link, read
from gpuckpt.tools.silent import unanswering
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuckpt.model import Process

_SUFFIXES: Final = (".safetensors", ".gguf", ".pt", ".pth")
# a .bin may be anything: it counts by its name, or beside the description of a model
_WORDS: Final = ("model", "weight", "consolidated", "adapter", "ggml")
_MODEL: Final = ("config.json", "params.json", "adapter_config.json")
_PARTS: Final = "model_index.json"  # of a pipeline: each of its folders is a model
_MOST: Final = 4096
# start times are told in ticks, times of files by another clock, and clocks are set
_GRAIN: Final = 1.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Use(Value, frozen=True):
    """A file that processes have; `how` is open, mapped, or written where they can change it."""

    path: str
    how: str


class Weight(Value, frozen=True):
    """One file of weights.

    `known` says how it was found: mapped, open, argument or folder. `model` and `commit` are those
    of a snapshot.
    """

    path: str
    known: tuple[str, ...] = ()
    model: str = ""
    commit: str = ""


class _Names(Value, frozen=True):
    """What one process's command line and environment tell; `began` is when it was started."""

    words: tuple[str, ...]
    paths: tuple[str, ...]
    cwd: str
    caches: tuple[str, ...]
    revision: str
    began: float


def weights(root: Path, processes: Iterable[Process], used: Iterable[Use]) -> tuple[Weight, ...]:
    """Find them; `used` is what the processes have open and mapped."""
    listed = list(used)
    written = {use.path for use in listed if use.how == "written"}
    found: dict[str, set[str]] = {}
    for use in listed:
        for path in hub.names_of(use.path)[:1] or [use.path]:
            if use.path not in written and is_weight(path):
                found.setdefault(path, set()).add(use.how)
    asked = [_told(root, process) for process in processes]
    dead = unanswering(root, (path for one in asked for path in (*one.paths, *one.caches)))
    for one in asked:
        for path, how in _named(one, dead):
            if os.path.realpath(path) not in written:
                found.setdefault(path, set()).add(how)
    return tuple(_weight(path, found[path]) for path in sorted(found)[:_MOST])


def is_weight(path: str) -> bool:
    """Whether a file is one of weights, by its name and what lies beside it."""
    folder, _, name = path.rpartition("/")
    name = name.lower()
    if name.endswith(_SUFFIXES):
        return True
    named = any(word in name for word in _WORDS)
    return name.endswith(".bin") and (named or _describes(folder))


def _weight(path: str, known: Iterable[str]) -> Weight:
    inside = hub.snapshot_of(path)
    model, commit = (inside.model, inside.commit) if inside is not None else ("", "")
    return Weight(path, tuple(sorted(known)), model, commit)


def _told(root: Path, process: Process) -> _Names:
    """Read them from /proc alone."""
    folder = f"{root}/{process.pid}"
    top = (link(f"{folder}/root") or "/").rstrip("/")
    words = tuple(dict.fromkeys(_words(process.argv)))
    try:
        caches = hub.hubs(paths(read(f"{folder}/environ") or b""))
    except OSError:
        caches = []
    return _Names(
        words=words,
        paths=tuple(
            os.path.normpath(f"{top}{one}" if one[0] == "/" else f"{process.cwd}/{one}")
            for one in words
        ),
        cwd=process.cwd,
        caches=tuple(f"{top}{one}" for one in caches),
        revision=_revision(process.argv),
        began=_began(process),
    )


def _named(names: _Names, dead: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield what a command line names, and what lies in its folder if that is a model.

    Nobody looks at what is `dead`: nothing would end that wait.
    """
    for path in names.paths:
        for one in _inside(path) if not f"{path}/".startswith(dead) else ():
            if hub.snapshot_of(one) or _changed(one) < names.began:
                yield one, "argument"
    for one in _inside(names.cwd):
        if _changed(one) < names.began:
            yield one, "folder"
    for cache in names.caches:
        for word in names.words if not f"{cache}/".startswith(dead) else ():
            known = hub.snapshot(cache, word, names.revision)
            if known is not None:
                yield from ((one, "argument") for one in _inside(known.folder))


def _words(argv: tuple[str, ...]) -> Iterator[str]:
    """Yield what may be a path or a name: whole arguments, and what stands behind an `=`."""
    for word in argv[:_MOST]:
        front, equals, back = word.partition("=")
        if word and not word.startswith("-"):
            yield word
        if equals and front and back:
            yield back


def _revision(argv: tuple[str, ...]) -> str:
    for word, following in pairwise((*argv, "")):  # a zombie has no words at all
        if word == "--revision":
            return following
        if word.startswith("--revision="):
            return word.partition("=")[2]
    return ""


def _inside(path: str) -> Iterator[str]:
    """Yield a file of weights, or those of a folder that holds a model."""
    if is_weight(path) and os.path.isfile(path):  # noqa: PTH113
        yield path
    elif os.path.isdir(path) and (_describes(path) or hub.snapshot_of(path)):  # noqa: PTH112
        folders = [path]
        if os.path.isfile(f"{path}/{_PARTS}"):  # noqa: PTH113
            folders += [f"{path}/{name}" for name in _names(path)]
        for folder in folders:
            for one in (f"{folder}/{name}" for name in _names(folder)):
                if is_weight(one) and os.path.isfile(one):  # noqa: PTH113
                    yield one


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))[:_MOST]  # noqa: PTH208
    return []


def _describes(folder: str) -> bool:
    return any(os.path.isfile(f"{folder}/{name}") for name in (*_MODEL, _PARTS))  # noqa: PTH113


def _began(process: Process) -> float:
    """Return when a process was started, by the wall clock."""
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - up + process.ref.start_time / _TICKS + _GRAIN


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except OSError:
        return 0.0
