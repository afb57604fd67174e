"""What a tree holds that needs care: locks, deleted files, terminals, device nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import Descriptor, fdinfo
from gpuckpt.tools.mappings import Mapped, behind
from gpuckpt.tools.procfs import read, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpuckpt.model import Process

_Opened = tuple["Process", "Sequence[Descriptor]", "Sequence[Mapped]"]

# names the kernel gives to memory: it says " (deleted)" behind them though no file ever was
_NO_FILE: Final = re.compile(
    r"/(memfd:|SYSV[0-9a-f]{8}$|dev/zero$|anon_hugepage|\[aio\]|dmabuf:|secretmem|i915|drm )"
)
_NODES: Final = re.compile(r"/dev/(?!shm/|zero$|hugepages/|mqueue/)")
_PTS_MAJORS: Final = range(136, 144)  # Documentation/admin-guide/devices.txt
_TTY_MAJOR, _TTYAUX_MAJOR = 4, 5
_PTMX: Final = (5, 2)


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A file lock or lease that goes with a descriptor."""

    pid: int
    fd: int
    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A deleted file in use; `links` > 0: it has another name, `bytes` on disk; fd None: mapped."""

    pid: int
    fd: int | None
    path: str
    links: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal whose other side is outside the tree; fd None: the controlling terminal."""

    pid: int
    fd: int | None
    path: str


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node held by descriptor or by mapping (fd None)."""

    pid: int
    fd: int | None
    path: str
    block: bool
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Held:
    """All of them."""

    locks: tuple[HeldLock, ...]
    deleted: tuple[DeletedFile, ...]
    terminals: tuple[Terminal, ...]
    nodes: tuple[DeviceNode, ...]


def held(root: Path, tree: Sequence[_Opened]) -> Held:
    """Find what the processes hold; `tree` has descriptors and mappings of each."""
    return Held(
        locks=_locks(root, tree),
        deleted=_deleted(root, tree),
        terminals=_terminals(root, tree),
        nodes=tuple(_nodes(root, tree)),
    )


def _locks(root: Path, tree: Iterable[_Opened]) -> tuple[HeldLock, ...]:
    """Ask the fdinfo of those files only that are locked by anybody at all."""
    lines = text(read(root / "locks") or b"").splitlines()
    locked = {int(found[1]) for line in lines if (found := re.search(r":(\d+) \S+ \S+$", line))}
    if not locked:
        return ()
    return tuple(
        HeldLock(process.pid, fd.fd, fd.target, value.split()[1].lower())
        for process, opened, _ in tree
        for fd in opened
        if fd.inode in locked and fd.kind in {"file", "folder"}
        for name, value in fdinfo(f"{root}/{process.pid}", fd.fd)
        if name == "lock"
    )


def _deleted(root: Path, tree: Iterable[_Opened]) -> tuple[DeletedFile, ...]:
    """Return each deleted file once, however many processes have it."""
    found: dict[tuple[int, int], DeletedFile] = {}
    for process, opened, mapped in tree:
        for fd in opened:
            if fd.deleted and fd.kind == "file" and not _NO_FILE.match(fd.target):
                one = DeletedFile(process.pid, fd.fd, fd.target, fd.links, fd.bytes)
                found.setdefault((fd.device, fd.inode), one)
        for area in mapped:
            if not area.deleted or _NO_FILE.match(area.target):
                continue
            file = behind(f"{root}/{process.pid}", area)
            if file is not None and file.rdev is None:
                one = DeletedFile(process.pid, None, area.target, file.links, file.bytes)
                found.setdefault((file.device, file.inode), one)
    return tuple(found.values())


def _terminals(root: Path, tree: Sequence[_Opened]) -> tuple[Terminal, ...]:
    """Return terminals; a pty whose master the tree has itself is its own affair."""
    own = {
        int(value)
        for process, opened, _ in tree
        for fd in opened
        if fd.kind == "chr" and fd.rdev == _PTMX
        for name, value in fdinfo(f"{root}/{process.pid}", fd.fd)
        if name == "tty-index" and value.isdigit()
    }
    found: list[Terminal] = []
    for process, opened, _ in tree:
        if process.tty and _pty(_tty_rdev(process.tty)) not in own:
            found.append(Terminal(process.pid, None, _tty_name(_tty_rdev(process.tty))))
        found += [
            Terminal(process.pid, fd.fd, fd.target)
            for fd in opened
            if fd.kind == "chr" and _is_terminal(fd.rdev) and _pty(fd.rdev) not in own
        ]
    return tuple(found)


def _is_terminal(rdev: tuple[int, int]) -> bool:
    return (rdev[0] in {_TTY_MAJOR, _TTYAUX_MAJOR} and rdev != _PTMX) or _pty(rdev) is not None


def _pty(rdev: tuple[int, int]) -> int | None:
    """Return the index of a Unix98 pty, None for other devices."""
    major, minor = rdev
    return (major - _PTS_MAJORS.start << 8) + minor if major in _PTS_MAJORS else None


def _tty_rdev(number: int) -> tuple[int, int]:
    """Take /proc/PID/stat's tty_nr apart."""
    return number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00


def _tty_name(rdev: tuple[int, int]) -> str:
    pty = _pty(rdev)
    if pty is not None:
        return f"/dev/pts/{pty}"
    return f"/dev/tty{rdev[1]}" if rdev[0] == _TTY_MAJOR else f"tty {rdev[0]}:{rdev[1]}"


def _nodes(root: Path, tree: Iterable[_Opened]) -> Iterable[DeviceNode]:
    for process, opened, mapped in tree:
        for fd in opened:
            if fd.kind in {"chr", "blk"}:
                yield DeviceNode(process.pid, fd.fd, fd.target, fd.kind == "blk", *fd.rdev)
        for area in mapped:
            if not _NODES.match(area.target):
                continue
            file = behind(f"{root}/{process.pid}", area)
            if file is not None and file.rdev is not None:
                yield DeviceNode(process.pid, None, area.target, file.block, *file.rdev)
