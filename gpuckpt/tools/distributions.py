"""Installed Python packages: which are in a folder, and to which of them a file belongs.

Read from the metadata that installers write; nothing is imported and no Python is started.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_METADATA: Final = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-py[0-9.]+)?\.(dist|egg)-info", re.ASCII
)
_PACKAGES: Final = "-packages/"
# setuptools has every Python of an environment load this at its start
_ALWAYS: Final = "_distutils_hack/"
_LARGEST: Final = 32 << 20


class Installed(Value, frozen=True):
    """One distribution: `name` as package indexes write it.

    `build` is a digest of what it says of its files, "" if it says nothing: another build of the
    same version has another one, wherever and by whatever it was installed.
    """

    name: str
    version: str
    folder: str
    build: str = ""


def place(path: str, others: Collection[str] = ()) -> tuple[str, str]:
    """Split a path into a folder for packages and the rest; both "" if it is in none."""
    front, found, rest = path.partition(_PACKAGES)
    if found:
        return front + _PACKAGES[:-1], rest
    folder = max((one for one in others if path.startswith(f"{one}/")), key=len, default="")
    return (folder, path[len(folder) + 1 :]) if folder else ("", "")


def installed(folder: str, names: Collection[str]) -> dict[str, Installed]:
    """Return those of the distributions that are in a folder."""
    found = {}
    for name, (version, metadata) in _listed(folder).items():
        if name in names:
            found[name] = Installed(name, version, folder, _build(metadata))
    return found


def owners(folder: str, paths: Collection[str]) -> dict[Installed, set[str]]:
    """Return the distributions that files in a folder belong to, and which of the files."""
    wanted = {os.fsencode(path): path for path in paths if not path.startswith(_ALWAYS)}
    found: dict[Installed, set[str]] = {}
    for name, (version, metadata) in _listed(folder).items() if wanted else ():
        record = _soft(f"{metadata}/RECORD")
        if record:
            listed = {line.partition(b",")[0] for line in record.splitlines()}
            mine = {wanted[path] for path in listed & wanted.keys()}
        else:
            known = set(_tops(name, metadata))
            mine = {path for path in wanted.values() if _top(path) in known}
        if mine:
            found[Installed(name, version, folder, _build(metadata))] = mine
    return found


def normal(name: str) -> str:
    """Return a distribution's name as package indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _listed(folder: str) -> dict[str, tuple[str, str]]:
    """Return version and metadata folder of each distribution, by its name."""
    found = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if match := _METADATA.fullmatch(entry.name):
                found[normal(match["name"])] = match["version"], entry.path
    return found


def _tops(name: str, metadata: str) -> Iterator[str]:
    """Go through the names that a distribution without a list of files is imported by."""
    told = _soft(f"{metadata}/top_level.txt").split()
    yield from (os.fsdecode(one) for one in told)
    if not told:
        yield name.replace("-", "_")


def _top(path: str) -> str:
    return path.partition("/")[0].partition(".")[0]


def _build(metadata: str) -> str:
    """Digest the files that every installer makes alike: no scripts, no caches, no metadata."""
    lines = [
        line
        for line in _soft(f"{metadata}/RECORD").splitlines()
        if b",sha256=" in line and b".dist-info/" not in line and not line.startswith((b"..", b"/"))
    ]
    return blake3(b"\n".join(sorted(lines))).hexdigest()[:32] if lines else ""


def _soft(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - paths from /proc may hold any bytes
            return file.read(_LARGEST)
    except OSError:
        return b""
