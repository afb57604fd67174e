"""Files and folders that a user asks to be watched: their trees, as one digest each.

What counts of an entry: its name, kind and mode, of a file its size and bytes, of a link where it
leads. Not its times, owner or links to it: a copy of a tree is the same tree.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zstandard
from blake3 import blake3

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuckpt.tools.digest import Digests

# what a listing may take in a manifest that people can open
LARGEST_LISTING: Final = 1 << 20
_LARGEST_PLAIN: Final = 64 << 20
_SHORT: Final = 8
_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class Entry(Value, frozen=True):
    """One thing in a tree; `path` is relative to its top, "" for the top itself.

    `stamp` changes with its bytes, and with much else.
    """

    path: str
    kind: str
    mode: int
    size: int = 0
    target: str = ""
    stamp: tuple[int, ...] = ()


class Walk(Value, frozen=True):
    """What a tree came to. `listing` tells of each entry, b"" if that would be too much."""

    path: str
    kind: str
    digest: str
    entries: int
    size: int
    listing: bytes = b""


def walk(
    path: str,
    digests: Digests,
    *,
    full: bool,
    advance: Callable[[int], None] = lambda _: None,
    before: tuple[list[Entry], Walk] | None = None,
) -> tuple[list[Entry], Walk] | None:
    """Go through a tree, for what has not changed since `before`; None if there is nothing.

    Raises:
        OSError: a part of it cannot be read.
    """
    top = os.path.realpath(path)  # what a link leads to is meant, not the link
    try:
        entries = sorted(_entries(top), key=lambda one: os.fsencode(one.path))
    except FileNotFoundError:
        return None
    if before is not None and before[0] == entries:
        return before
    files = [_join(top, one.path) for one in entries if one.kind == "file"]
    known = digests.of(files, full=full, advance=advance)
    lines: list[tuple[bytes, bytes]] = []
    for one in entries:
        place = _join(top, one.path)
        made = known.get(place)
        if one.kind == "file" and made is None:
            if not os.path.lexists(place):
                continue
            raise OSError(errno.EIO, "cannot be read", place)
        lines.append((os.fsencode(one.path), _line(one, made.hex if made is not None else "")))
    whole = Walk(
        path=path,
        kind=entries[0].kind,
        digest=_whole(line for _, line in lines),
        entries=len(lines),
        size=sum(one.size for one in entries),
        listing=_listing(lines),
    )
    return entries, whole


def _whole(lines: Iterable[bytes]) -> str:
    found = blake3()
    for line in lines:
        found.update(len(line).to_bytes(4, "little") + line)
    return found.hexdigest()


def _listing(lines: Iterable[tuple[bytes, bytes]]) -> bytes:
    plain = b"".join(name + b"\0" + blake3(line).digest()[:_SHORT] for name, line in lines)
    packed = zstandard.ZstdCompressor(level=9).compress(plain)
    return packed if len(packed) <= LARGEST_LISTING else b""


def differences(old: bytes, new: bytes) -> list[tuple[str, str]]:
    """Return which paths of two listings are missing, new or changed, in the order of paths.

    Nothing if one of them is no listing.
    """
    try:
        before, now = dict(_listed(old)), dict(_listed(new))
    except (zstandard.ZstdError, ValueError):
        return []
    found = []
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            word = "missing" if path not in now else "new" if path not in before else "changed"
            found.append((path, word))
    return found


def _listed(packed: bytes) -> Iterator[tuple[str, bytes]]:
    reader = zstandard.ZstdDecompressor(max_window_size=_LARGEST_PLAIN).stream_reader(packed)
    raw = reader.read(_LARGEST_PLAIN) if packed else b""
    at = 0
    while at < len(raw):
        end = raw.index(b"\0", at)
        yield os.fsdecode(raw[at:end]), raw[end + 1 : end + 1 + _SHORT]
        at = end + 1 + _SHORT


def _line(one: Entry, digest: str) -> bytes:
    """Return all that counts of an entry, in the words of image/FORMAT.md."""
    words = (one.kind, f"{one.mode:04o}", str(one.size), digest, one.path, one.target)
    return b"\0".join(map(os.fsencode, words))


def _join(top: str, path: str) -> str:
    return f"{top}/{path}" if path else top


def _entries(top: str) -> Iterator[Entry]:
    """Go through all entries; what vanishes meanwhile is not there."""
    seen = os.lstat(top)
    yield _entry(top, "", seen)
    folders = [""] if stat.S_ISDIR(seen.st_mode) else []
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError), os.scandir(_join(top, folder)) as found:
            for one in found:
                path = f"{folder}/{one.name}" if folder else one.name
                with suppress(FileNotFoundError):
                    entry = _entry(one.path, path, one.stat(follow_symlinks=False))
                    if entry.kind == "folder":
                        folders.append(path)
                    yield entry


def _entry(place: str, path: str, seen: os.stat_result) -> Entry:
    kind = _KINDS.get(stat.S_IFMT(seen.st_mode), "other")
    if kind == "link":
        return Entry(path, kind, 0, target=os.readlink(place))  # noqa: PTH115
    if kind != "file":
        return Entry(path, kind, stat.S_IMODE(seen.st_mode))
    stamp = (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns)
    return Entry(path, kind, stat.S_IMODE(seen.st_mode), seen.st_size, "", stamp)
