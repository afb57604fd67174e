"""What a manifest may say of the files that an image carries: nothing that harms its reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from gpuckpt.image.names import CARRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.model import CarriedFile

_LARGEST_MODE: Final = 0o7777
_LARGEST_ID: Final = (1 << 32) - 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class _Stored(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def raw_size(self) -> int: ...


class _Folder(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def mode(self) -> int: ...
    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...


def flaws(
    files: Iterable[CarriedFile], stored: Iterable[_Stored], folders: Iterable[_Folder]
) -> Iterator[str]:
    """Yield what no manifest may say of them."""
    taken: set[str] = set()
    whole = 0
    for one in files:
        for name in (*one.names, *([one.link] if one.link else [])):
            if not _plain(name) or name in taken:
                yield f"it carries a file named {name!a}"
            taken.add(name)
        whole += one.bytes
        yield from _file(one)
    have = sum(one.raw_size for one in stored if one.name == CARRIED)
    if whole != have:
        yield "the files it carries are not as many bytes as it has of them"
    yield from _folder_flaws(folders)


def _folder_flaws(folders: Iterable[_Folder]) -> Iterator[str]:
    """Yield what no manifest may say of folders that a restore makes."""
    for one in folders:
        if not _plain(one.path):
            yield f"it has a folder named {one.path!a}"
        if one.mode > _LARGEST_MODE or max(one.uid, one.gid) > _LARGEST_ID:
            yield f"the folder {one.path!a} has an impossible owner or mode"


def _plain(name: str) -> bool:
    """Whether it is a path from the root on, without detours."""
    return name.startswith("/") and not {"", ".", ".."}.intersection(name.split("/")[1:])


def _file(one: CarriedFile) -> Iterator[str]:
    if not (one.names or one.link):
        yield "it carries a file without a name"
    if one.mode > _LARGEST_MODE or max(one.uid, one.gid) > _LARGEST_ID:
        yield f"the carried file {one.path!a} has an impossible owner or mode"
    if not _DIGEST.fullmatch(one.digest):
        yield f"the carried file {one.path!a} has no BLAKE3 digest"
    at = 0
    for offset, length in one.extents:
        if offset < at or length < 1 or offset + length > one.size:
            yield f"the carried file {one.path!a} has parts that cannot be"
            return
        at = offset + length
