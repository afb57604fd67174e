"""What a process has open: /proc/PID/fd and fdinfo."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.procfs import GONE, link, numbers, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from pathlib import Path

_SMALL_PAGES: Final = 1 << 16  # the largest that are not huge, on any processor
_NUMBERED: Final = re.compile(r"(?:socket|pipe):\[(\d+)\]")
_KINDS: Final = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFCHR: "chr",
    stat.S_IFBLK: "blk",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "link",
}


class Descriptor(Value, frozen=True):
    """One open descriptor.

    `target` is the kernel's name for it, without ` (deleted)`. `kind` is file, folder, chr, blk,
    fifo, socket, link, pipe, anon, or "" if it could not be looked at. `inode` identifies pipes and
    sockets, together with `device` also files; `links` and `bytes` (on disk) count for files,
    `rdev` is (major, minor) of a device node, `protocol` what the kernel calls a socket's.
    `trait` is "huge" for a memfd of huge pages, "packets" for a pipe that keeps writes apart.
    """

    fd: int
    target: str
    kind: str
    inode: int = 0
    device: int = 0
    links: int = 1
    bytes: int = 0
    rdev: tuple[int, int] = (0, 0)
    reads: bool = True
    writes: bool = False
    deleted: bool = False
    protocol: str = ""
    trait: str = ""


def descriptors(process: Path | str) -> tuple[Descriptor, ...]:
    """Return all open descriptors of the process whose /proc folder this is; none if it is gone.

    Raises:
        PermissionError: this process may not look.
    """
    found = (_descriptor(f"{process}/fd/{fd}", fd) for fd in numbers(f"{process}/fd"))
    return tuple(one for one in found if one is not None)


def targets(process: Path | str) -> tuple[tuple[int, str], ...]:
    """Return the names alone of all open descriptors: cheaper than `descriptors`."""
    found = ((fd, link(f"{process}/fd/{fd}")) for fd in numbers(f"{process}/fd"))
    return tuple((fd, target) for fd, target in found if target is not None)


def fdinfo(process: Path | str, fd: int) -> tuple[tuple[str, str], ...]:
    """Return the `name: value` lines of one descriptor's fdinfo; names may come twice."""
    try:
        raw = read(f"{process}/fdinfo/{fd}") or b""
    except OSError:
        return ()
    pairs = (line.partition(":") for line in text(raw).splitlines())
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def plain(target: str) -> tuple[str, bool]:
    """Split the kernel's ` (deleted)` mark from a name."""
    name = target.removesuffix(" (deleted)")
    return name, name != target


def _descriptor(path: str, fd: int) -> Descriptor | None:
    target = link(path)
    if target is None:
        return None
    numbered = _NUMBERED.fullmatch(target)
    if numbered and target.startswith("socket"):
        inode, protocol = int(numbered[1]), _protocol(path)
        return Descriptor(fd, target, "socket", inode, writes=True, protocol=protocol)
    if numbered:
        reads, writes = _direction(path)
        trait = "packets" if writes and _flags(path) & os.O_DIRECT else ""
        inode = int(numbered[1])
        return Descriptor(fd, target, "pipe", inode, reads=reads, writes=writes, trait=trait)
    if not target.startswith("/"):
        return Descriptor(fd, target, "anon")
    return _named(path, fd, target)


def _named(path: str, fd: int, target: str) -> Descriptor | None:
    """Look at what has a path: files, folders, device nodes, fifos, memfds."""
    name, deleted = plain(target)
    try:
        found = os.stat(path)
    except GONE:
        return None
    except OSError:  # a stale network file, a dead fuse: it is open all the same
        return Descriptor(fd, name, "", deleted=deleted)
    reads, writes = _direction(path)
    return Descriptor(
        fd,
        name,
        _KINDS.get(stat.S_IFMT(found.st_mode), ""),
        inode=found.st_ino,
        device=found.st_dev,
        links=found.st_nlink,
        bytes=found.st_blocks * 512,
        rdev=(os.major(found.st_rdev), os.minor(found.st_rdev)),
        reads=reads,
        writes=writes,
        deleted=deleted,
        trait="huge" if name.startswith("/memfd:") and _huge(path) else "",
    )


def _huge(path: str) -> bool:
    """Whether a memfd lies on the file system of huge pages, whose blocks these are."""
    try:
        return os.statvfs(path).f_bsize > _SMALL_PAGES
    except OSError:
        return False


def _flags(path: str) -> int:
    """Return the flags something was opened with."""
    folder, _, fd = path.rpartition("/fd/")
    try:
        raw = read(f"{folder}/fdinfo/{fd}") or b""
    except OSError:
        return 0
    found = raw.partition(b"flags:")[2].split(maxsplit=1)
    return int(found[0], 8) if found else 0


def _protocol(path: str) -> str:
    """Return a socket's protocol: the one thing that /proc tells of sockets of every family."""
    try:
        return text(os.getxattr(path, "system.sockprotoname").rstrip(b"\0"))
    except OSError:
        return ""


def _direction(path: str) -> tuple[bool, bool]:
    """Whether it was opened to read and to write: the permission bits of the link itself."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return True, True
    return bool(mode & stat.S_IRUSR), bool(mode & stat.S_IWUSR)
