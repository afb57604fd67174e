"""File locks and leases: those of a tree, and who else has or wants the same ones."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import Descriptor, fdinfo, targets
from gpuckpt.tools.procfs import below, numbers, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_LINE: Final = re.compile(
    r"\d+: (?P<waits>-> )?(?P<kind>\w+) +\S+ +(?P<mode>\w+) (?P<pid>-?\d+) "
    r"(?P<device>\S+):(?P<inode>\d+) \S+ \S+"
)
# locks that go with the open file, whoever shares it; POSIX locks go with one process
_SHARED: Final = re.compile(r"(FLOCK|OFDLCK) +\S+ +WRITE")


class HeldLock(Value, frozen=True):
    """A file lock or lease that goes with a descriptor; `whole`: it covers the whole file."""

    pid: int
    fd: int
    path: str
    kind: str
    inode: int = 0
    exclusive: bool = True
    whole: bool = True


class FileLock(Value, frozen=True):
    """A lock that some process has on a file, pid -1 where the kernel does not say who."""

    pid: int
    kind: str
    exclusive: bool


class LockRival(Value, frozen=True):
    """A process outside the tree that has one of its locks too, or `waits` for it."""

    pid: int
    fd: int
    path: str
    holder: int
    comm: str
    waits: bool


def locks(root: Path, tree: Iterable[tuple[int, Sequence[Descriptor]]]) -> tuple[HeldLock, ...]:
    """Ask the fdinfo of those files only that are locked by anybody at all."""
    locked = {int(found["inode"]) for found in _lines(root)}
    if not locked:
        return ()
    return tuple(
        _held(pid, fd, value.split())
        for pid, opened in tree
        for fd in opened
        if fd.inode in locked and fd.kind in {"file", "folder"}
        for name, value in fdinfo(f"{root}/{pid}", fd.fd)
        if name == "lock"
    )


def _held(pid: int, fd: Descriptor, fields: Sequence[str]) -> HeldLock:
    """Read `1: FLOCK ADVISORY WRITE PID DEVICE:INODE START END`."""
    return HeldLock(
        pid,
        fd.fd,
        fd.target,
        fields[1].lower(),
        fd.inode,
        exclusive=fields[3] == "WRITE",
        whole=fields[-2:] == ["0", "EOF"],
    )


def on_file(root: Path, path: str) -> tuple[FileLock, ...]:
    """Return the locks that are on a file now; none if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - paths may hold any bytes
    except OSError:
        return ()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return tuple(
        FileLock(int(line["pid"]), line["kind"].lower(), line["mode"] == "WRITE")
        for line in _lines(root)
        if not line["waits"] and int(line["inode"]) == found.st_ino and line["device"] == device
    )


def rivals(
    root: Path, held: Sequence[HeldLock], inside: set[int], names: Mapping[int, str]
) -> tuple[LockRival, ...]:
    """Return who outside the tree waits for its locks, or shares the open file they are on."""
    if not held:
        return ()
    by_inode = {one.inode: one for one in reversed(held)}
    waiting = [
        (by_inode[inode], pid, True)
        for found in _lines(root)
        if found["waits"] and (inode := int(found["inode"])) in by_inode
        if (pid := int(found["pid"])) > 0 and not below(root, pid, inside)
    ]
    return tuple(
        LockRival(one.pid, one.fd, one.path, pid, names.get(pid, "?"), waits)
        for one, pid, waits in (*_sharers(root, held, inside), *waiting)
    )


def _sharers(
    root: Path, held: Iterable[HeldLock], inside: set[int]
) -> Iterator[tuple[HeldLock, int, bool]]:
    """An exclusive lock that a stranger's descriptor has as well is one that both inherited."""
    wanted = {one.path: one for one in held if one.kind in {"flock", "ofdlck"}}
    if not wanted:
        return
    for pid in numbers(root):
        if pid in inside:
            continue
        try:
            opened = [(fd, target) for fd, target in targets(f"{root}/{pid}") if target in wanted]
        except OSError:
            continue
        for fd, target in opened:
            told = [value for name, value in fdinfo(f"{root}/{pid}", fd) if name == "lock"]
            shared = any(_SHARED.search(one) for one in told)
            if shared and _same(root, pid, fd, wanted[target]) and not below(root, pid, inside):
                yield wanted[target], pid, False
                break


def _same(root: Path, pid: int, fd: int, lock: HeldLock) -> bool:
    try:
        return os.stat(f"{root}/{pid}/fd/{fd}").st_ino == lock.inode  # noqa: PTH116
    except OSError:
        return False


def _lines(root: Path) -> Iterator[re.Match[str]]:
    for line in text(read(root / "locks") or b"").splitlines():
        if found := _LINE.fullmatch(line):
            yield found
