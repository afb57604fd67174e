"""The weights that a job works with: files it has open or mapped, or that its command line names.

Most programs read weights once and let go of them, so what is named counts as well: files, folders
of models, and models by the name they have in the cache of Hugging Face. Named files that are
younger than their process are its work, not its model.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools import hub
from gpuckpt.tools.environment import paths
from gpuckpt.tools.procfs import link, read
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


def weights(root: Path, processes: Iterable[Process], used: Iterable[Use]) -> tuple[Weight, ...]:
    """Find them; `used` is what the processes have open and mapped."""
    listed = list(used)
    written = {one.path for one in listed if one.how == "written"}
    found: dict[str, set[str]] = {}
    for one in listed:
        for path in hub.names_of(one.path)[:1] or [one.path]:
            if one.path not in written and is_weight(path):
                found.setdefault(path, set()).add(one.how)
    for process in processes:
        for path, how in _named(root, process):
            if os.path.realpath(path) not in written:
                found.setdefault(path, set()).add(how)
    return tuple(_weight(path, found[path]) for path in sorted(found)[:_MOST])


def is_weight(path: str) -> bool:
    """Whether a file is one of weights, by its name and what lies beside it."""
    folder, _, name = path.lower().rpartition("/")
    if name.endswith(_SUFFIXES):
        return True
    named = any(word in name for word in _WORDS)
    return name.endswith(".bin") and (named or _describes(path[: len(folder)]))


def _weight(path: str, known: Iterable[str]) -> Weight:
    inside = hub.snapshot_of(path)
    model, commit = (inside.model, inside.commit) if inside is not None else ("", "")
    return Weight(path, tuple(sorted(known)), model, commit)


def _named(root: Path, process: Process) -> Iterator[tuple[str, str]]:
    """Yield what a process's command line names, and what lies in its folder if that is a model."""
    folder = f"{root}/{process.pid}"
    top = (link(f"{folder}/root") or "/").rstrip("/")
    began = _began(process)
    words = list(_words(process.argv))
    for word in words:
        path = os.path.normpath(f"{top}{word}" if word[0] == "/" else f"{process.cwd}/{word}")
        for one in _inside(path):
            if hub.snapshot_of(one) or _changed(one) < began:
                yield one, "argument"
    for one in _inside(process.cwd):
        if _changed(one) < began:
            yield one, "folder"
    try:
        caches = hub.hubs(paths(read(f"{folder}/environ") or b""))
    except OSError:
        return
    for cache in caches:
        for word in dict.fromkeys(words):
            known = hub.snapshot(f"{top}{cache}", word, _revision(process.argv))
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
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
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
