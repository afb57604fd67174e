"""What a tree holds that needs care: locks, deleted files, terminals, device nodes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.tools.descriptors import Descriptor, fdinfo, targets
from gpuckpt.tools.locks import HeldLock, locks
from gpuckpt.tools.mappings import Mapped, behind
from gpuckpt.tools.places import Mount, above
from gpuckpt.tools.procfs import numbers
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpuckpt.model import Process
    from gpuckpt.tools.pidspace import Space

_Opened = tuple["Process", "Sequence[Descriptor]", "Sequence[Mapped]"]

# names the kernel gives to memory: it says " (deleted)" behind them though no file ever was
_NO_FILE: Final = re.compile(
    r"/(memfd:|SYSV[0-9a-f]{8}$|dev/zero$|anon_hugepage|\[aio\]|dmabuf:|secretmem|i915|drm )"
)
_NODES: Final = re.compile(r"/dev/(?!shm/|zero$|hugepages/|mqueue/)")
_PTS_MAJORS: Final = range(136, 144)  # Documentation/admin-guide/devices.txt
_TTY_MAJOR, _TTYAUX_MAJOR = 4, 5
_PTMX: Final = (5, 2)


class DeletedFile(Value, frozen=True):
    """A deleted file in use; `links` > 0: it has another name, `bytes` on disk; fd None: mapped.

    `replaced`: its old name means another file now. `linkable`: its folder takes a new name for it,
    or is gone too; a file of an overlay's lower layer can have none.
    `leftover` is a file that an earlier restore has left where the next one needs its name.
    """

    pid: int
    fd: int | None
    path: str
    links: int
    bytes: int
    device: int = 0
    inode: int = 0
    replaced: bool = False
    linkable: bool = True
    leftover: str = ""


class Terminal(Value, frozen=True):
    """A terminal whose other side is outside the tree; fd None: the controlling terminal.

    `holder` is the process that has the other side and `comm` its name, 0 if nobody is seen.
    """

    pid: int
    fd: int | None
    path: str
    holder: int = 0
    comm: str = ""


class DeviceNode(Value, frozen=True):
    """A device node held by descriptor or by mapping (fd None)."""

    pid: int
    fd: int | None
    path: str
    block: bool
    major: int
    minor: int


class Held(Value, frozen=True):
    """All of them."""

    locks: tuple[HeldLock, ...]
    deleted: tuple[DeletedFile, ...]
    terminals: tuple[Terminal, ...]
    nodes: tuple[DeviceNode, ...]


def held(
    root: Path,
    tree: Sequence[_Opened],
    names: Mapping[int, str],
    known: Mapping[int, Mount],
    space: Space | None = None,
) -> Held:
    """Find what the processes hold; `tree` has descriptors and mappings of each."""
    reach = space.reach if space is not None else str
    return Held(
        locks=locks(root, [(process.pid, opened) for process, opened, _ in tree]),
        deleted=tuple(
            _with_place(one, writes, known, reach) for one, writes in _deleted(root, tree)
        ),
        terminals=_terminals(root, tree, names),
        nodes=tuple(_nodes(root, tree)),
    )


def _deleted(root: Path, tree: Iterable[_Opened]) -> Iterable[tuple[DeletedFile, bool]]:
    """Return each deleted file once, however many processes have it, and whether it is written."""
    found: dict[tuple[int, int], tuple[DeletedFile, bool]] = {}
    for process, opened, mapped in tree:
        for fd in opened:
            if fd.deleted and fd.kind == "file" and not _NO_FILE.match(fd.target):
                one = DeletedFile(
                    process.pid, fd.fd, fd.target, fd.links, fd.bytes, fd.device, fd.inode
                )
                found.setdefault((fd.device, fd.inode), (one, fd.writes))
        for area in mapped:
            if not area.deleted or _NO_FILE.match(area.target):
                continue
            file = behind(f"{root}/{process.pid}", area)
            if file is not None and file.rdev is None:
                where = file.device, file.inode
                one = DeletedFile(process.pid, None, area.target, file.links, file.bytes, *where)
                found.setdefault(where, (one, False))
    return found.values()


def _with_place(
    file: DeletedFile, writes: bool, known: Mapping[int, Mount], reach: Callable[[str], str]
) -> DeletedFile:
    """Look at the place where the file was; `reach` gives the way to it.

    What was opened for writing has been copied to the upper layer of its overlay.
    """
    path = reach(file.path)
    folder = os.path.dirname(path)  # noqa: PTH120
    mount = above(file.path, known)
    lower = mount is not None and mount.filesystem == "overlay" and not writes
    writable = os.access(folder, os.W_OK) or not os.access(folder, os.F_OK)
    return replace(
        file,
        replaced=os.path.lexists(path),
        linkable=writable and not lower,
        leftover=_leftover(folder, path) if not file.links else "",
    )


def _leftover(folder: str, path: str) -> str:
    """Return a ghost that CRIU made here before: it takes NAME.cr.N.ghost with a hex number."""
    pattern = re.compile(re.escape(path.rpartition("/")[2]) + r"\.cr\.[0-9a-f]+\.ghost")
    try:
        found = [name for name in os.listdir(folder) if pattern.fullmatch(name)]  # noqa: PTH208
    except OSError:
        return ""
    return f"{folder}/{min(found)}" if found else ""


def _terminals(
    root: Path, tree: Sequence[_Opened], names: Mapping[int, str]
) -> tuple[Terminal, ...]:
    """Return terminals; a pty whose master the tree has itself is its own affair."""
    own = {
        index
        for process, opened, _ in tree
        for fd in opened
        if fd.kind == "chr" and fd.rdev == _PTMX
        for index in _indices(f"{root}/{process.pid}", fd.fd)
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
    return tuple(_with_holders(root, found, names))


def _with_holders(
    root: Path, found: Sequence[Terminal], names: Mapping[int, str]
) -> Iterator[Terminal]:
    """Say who has the other sides: tmux, screen, sshd, a terminal window."""
    masters: dict[str, int] = {}
    for pid in numbers(root) if found else ():
        try:
            opened = [fd for fd, target in targets(f"{root}/{pid}") if target.endswith("/ptmx")]
        except OSError:
            continue
        for fd in opened:
            for index in _indices(f"{root}/{pid}", fd):
                masters.setdefault(f"/dev/pts/{index}", pid)
    for one in found:
        holder = masters.get(one.path, 0)
        yield replace(one, holder=holder, comm=names.get(holder, ""))


def _indices(process: str, fd: int) -> Iterator[int]:
    """Return the number of the pty that a master belongs to."""
    for name, value in fdinfo(process, fd):
        if name == "tty-index" and value.isdigit():
            yield int(value)


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
