"""What a process has mapped that has a name: /proc/PID/maps."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.tools.descriptors import plain
from gpuckpt.tools.procfs import lines, numbers, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FIELDS: Final = 6
_NAMELESS: Final = b" 00:00 0 "  # most lines of a training job; told apart before all else
_PROBES: Final = b"[uprobes]"
_MEMFD: Final = "/memfd:"


class Mapped(Value, frozen=True):
    """One named thing that is mapped, in however many pieces.

    `area` is the first piece as map_files names it, `target` the name without ` (deleted)`;
    `pieces` counts those that may be read and written. `sealed`: a memfd that nobody may write to
    any more, mapped by a descriptor that was opened for writing.
    """

    target: str
    area: str
    inode: int
    shared: bool
    deleted: bool
    pieces: int = 0
    sealed: bool = False


class Behind(Value, frozen=True):
    """The file behind a mapping.

    `bytes` on disk; `rdev` is (major, minor) of a device node, None if it is no such thing, and
    `block` says whether it is a block device.
    """

    inode: int
    device: int
    links: int
    bytes: int
    rdev: tuple[int, int] | None
    block: bool
    regular: bool


def mappings(process: Path | str) -> tuple[Mapped, ...]:
    """Return each named mapping once; none if the process is gone.

    Raises:
        PermissionError: this process may not look.
    """
    found = parse_maps(read(f"{process}/maps") or b"")
    return tuple(replace(one, sealed=True) if _sealed(process, one) else one for one in found)


def _sealed(process: Path | str, one: Mapped) -> bool:
    if not one.shared or not one.target.startswith(_MEMFD):
        return False
    path = f"{process}/map_files/{one.area}"
    with suppress(OSError):  # gone, or not ours to look at
        if not os.lstat(path).st_mode & stat.S_IWUSR:  # as it was opened
            return False
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
        finally:
            os.close(fd)
    return False


def parse_maps(raw: bytes) -> tuple[Mapped, ...]:
    """Read a maps file. A training job has thousands of lines, few of them with other names."""
    found: dict[tuple[bytes, bytes, bool], bytes] = {}
    pieces: dict[tuple[bytes, bytes, bool], int] = {}
    for line in lines(raw):
        if line.endswith(_NAMELESS):
            continue
        fields = line.split(None, _FIELDS - 1)
        if len(fields) < _FIELDS or (fields[5].startswith(b"[") and fields[5] != _PROBES):
            continue
        key = (fields[5], fields[4], fields[1].endswith(b"s"))
        found.setdefault(key, fields[0])
        if fields[1].startswith(b"rw"):
            pieces[key] = pieces.get(key, 0) + 1
    return tuple(_mapped(key, area, pieces.get(key, 0)) for key, area in found.items())


def _mapped(key: tuple[bytes, bytes, bool], area: bytes, pieces: int) -> Mapped:
    name, deleted = plain(text(key[0]))
    return Mapped(name, area.decode("ascii"), int(key[1]), key[2], deleted, pieces)


def inodes(process: Path | str) -> Iterator[tuple[tuple[int, int], bool]]:
    """Return device and inode of every file that is mapped, and whether it is written to by that.

    Raises:
        PermissionError: this process may not look.
    """
    for line in lines(read(f"{process}/maps") or b""):
        if _NAMELESS not in line:
            _, rights, _, device, inode, *_ = line.split(None, 5)
            major, _, minor = device.partition(b":")
            key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            yield key, rights[1:2] == b"w" and rights.endswith(b"s")


def mapped_by(root: Path, names: set[str]) -> dict[str, tuple[int, ...]]:
    """Return which processes of the host map these files."""
    found: dict[str, tuple[int, ...]] = {}
    for pid in numbers(root):
        try:
            theirs = {one.target for one in mappings(f"{root}/{pid}")}
        except OSError:
            continue
        found.update({name: (*found.get(name, ()), pid) for name in theirs & names})
    return found


def behind(process: Path | str, mapped: Mapped) -> Behind | None:
    """Look at the file itself, whatever became of its name; None if that cannot be done."""
    try:
        found = os.stat(area_link(process, mapped.area))
    except OSError:
        return None
    node = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    rdev = (os.major(found.st_rdev), os.minor(found.st_rdev)) if node else None
    return Behind(
        inode=found.st_ino,
        device=found.st_dev,
        links=found.st_nlink,
        bytes=found.st_blocks * 512,
        rdev=rdev,
        block=stat.S_ISBLK(found.st_mode),
        regular=stat.S_ISREG(found.st_mode),
    )


def area_link(process: Path | str, area: str) -> str:
    """Return the link that leads to the file mapped at these addresses."""
    start, _, end = area.partition("-")
    # map_files has no leading zeros, maps pads to eight digits
    return f"{process}/map_files/{int(start, 16):x}-{int(end, 16):x}"
