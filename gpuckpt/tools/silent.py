"""Filesystems of other machines that do not answer: who touches a file there waits without end."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import targets
from gpuckpt.tools.mappings import mappings
from gpuckpt.tools.places import Mount, mounts
from gpuckpt.tools.procfs import link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# for all of them together, in seconds; one that works answers in milliseconds
PATIENCE: Final = 5.0


def silent(root: Path, paths: Iterable[str], pids: Iterable[int]) -> tuple[str, ...]:
    """Return those in which the paths are, or what processes use, as `nfs4 at /data`."""
    return tuple(f"{one.filesystem} at {one.point}" for one in _silent(root, paths, pids))


def unanswering(root: Path, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that those are mounted at in which the paths are."""
    return tuple(f"{one.point.rstrip('/')}/" for one in _silent(root, paths, ()))


def _silent(root: Path, paths: Iterable[str], pids: Iterable[int]) -> list[Mount]:
    """Ask each of them once.

    Names are taken from the kernel, which tells them without asking the server.
    """
    asked: dict[int, tuple[str, Mount]] = {}
    for process, names in ((f"{root}/self", paths), *((f"{root}/{pid}", None) for pid in pids)):
        with suppress(OSError):  # this user may not look there, or it is gone
            remote = [one for one in mounts(process).values() if one.remote]
            for path in (names if names is not None else _used(process)) if remote else ():
                for one in remote:
                    if f"{path}/".startswith(f"{one.point.rstrip('/')}/"):
                        asked.setdefault(one.device, (f"{process}/root{one.point}", one))
    answered = _answered([place for place, _ in asked.values()])
    return [one for place, one in asked.values() if place not in answered]


def _used(process: str) -> Iterator[str]:
    yield from (link(f"{process}/{name}") or "" for name in ("exe", "cwd", "root"))
    yield from (target for _, target in targets(process))
    yield from (one.target for one in mappings(process))


def _answered(places: list[str]) -> set[str]:
    """Ask all at once, each in a thread that nobody waits for if it never comes back."""
    answered: set[str] = set()

    def ask(place: str) -> None:
        with suppress(OSError):  # a refusal is an answer
            os.statvfs(place)
        answered.add(place)

    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in places]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    return set(answered)
