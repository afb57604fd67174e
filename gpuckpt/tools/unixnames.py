"""Names of Unix sockets: whether one is in use on this host, and by whom.

A name that is no path belongs to the network namespace and to one kind of socket. A path can be
bound again once it is removed, which CRIU 4.2.1 does at a restore: whoever listened there is then
cut off from new clients, and is not told.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import targets
from gpuckpt.tools.procfs import numbers
from gpuckpt.tools.sockets import KINDS, UnixSocket, unix_sockets, written
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# The CUDA driver binds one in every process, padded to 108 bytes, to hand a descriptor to others
# that share GPU memory by CUDA IPC; they make up the name from the number of the pid namespace and
# the pid. With 580.159 a second copy of any CUDA job failed for it. Such numbers have ten digits,
# from 0xf0000000 on.
_DRIVERS: Final = re.compile(rb"\0cuda-uvmfd-(\d{10})-\d+\0*")
_NCCL: Final = b"tmp/nccl-socket-"  # behind a zero byte, or a / (see flow/sight/rules/ranks.py)
_NUMBER_DIGITS: Final = 10
_LOWER_HALF: Final = 0xFFFFFFFF


class SocketName(Value, frozen=True):
    """A path, or a name that is none and begins with a zero byte; of which `kind`, "" for any."""

    raw: bytes
    kind: str = ""

    @property
    def path(self) -> str:
        """The path, "" if it is none."""
        return os.fsdecode(self.raw) if self.raw[:1] == b"/" else ""

    @property
    def words(self) -> str:
        """The name for people."""
        return written(self.raw.rstrip(b"\0")) if any(self.raw) else "@"

    @property
    def drivers(self) -> bool:
        """Whether the CUDA driver has made it from the number of a pid namespace."""
        return _DRIVERS.fullmatch(self.raw) is not None

    @property
    def communicators(self) -> bool:
        """Whether a communicator of NCCL has it, by which its other ranks send to this one."""
        return self.raw[1:].startswith(_NCCL)


def moved(raw: bytes, namespace: int) -> bytes:
    """Return a name as the CUDA driver makes it in this pid namespace; others as they are."""
    digits = b"%d" % namespace
    found = _DRIVERS.fullmatch(raw)
    if found is None or len(digits) != _NUMBER_DIGITS:
        return raw
    return raw[: found.start(1)] + digits + raw[found.end(1) :]


def users(proc: Path, names: Iterable[SocketName]) -> dict[SocketName, tuple[int, ...]]:
    """Return those of the names that are in use, with the processes we see to have them."""
    wanted = tuple(names)
    if not wanted:
        return {}
    try:
        sockets = tuple(unix_sockets().values())
    except OSError:  # no unix_diag: CRIU cannot work without it either and says so itself
        sockets = ()
    found = {one: inodes for one in wanted if (inodes := _inodes(one, sockets)) is not None}
    pids = _pids(proc, {inode for inodes in found.values() for inode in inodes})
    return {
        one: tuple(sorted({pid for inode in inodes for pid in pids.get(inode, ())}))
        for one, inodes in found.items()
    }


def _inodes(name: SocketName, sockets: Iterable[UnixSocket]) -> list[int] | None:
    """Return the sockets that have a name, None if nobody has it."""
    if name.path:
        return _listening(name, sockets) or None
    if not _refused(name):
        return None
    return [
        one.inode
        for one in sockets
        if (one.name, one.kind) == (written(name.raw), name.kind) and not one.talks
    ]


def _listening(name: SocketName, sockets: Iterable[UnixSocket]) -> list[int]:
    try:
        there = Path(name.path).stat()
    except OSError:
        return []
    if not stat.S_ISSOCK(there.st_mode):
        return []
    file = there.st_dev, there.st_ino & _LOWER_HALF
    return [one.inode for one in sockets if not one.talks and _bound(one, name, file)]


def _bound(one: UnixSocket, name: SocketName, file: tuple[int, int]) -> bool:
    """Whether a socket is the one at a path; overlays show a file by other numbers."""
    return one.file == file or (one.file[0] != file[0] and one.name == written(name.raw))


def _refused(name: SocketName) -> bool:
    """Try a name as CRIU will."""
    kind = next((number for number, words in KINDS.items() if words == name.kind), None)
    if kind is None:
        return False
    with socket.socket(socket.AF_UNIX, kind) as trial:
        try:
            trial.bind(name.raw)
        except OSError as why:
            return why.errno == errno.EADDRINUSE
    return False


def _pids(proc: Path, inodes: Collection[int]) -> dict[int, list[int]]:
    """Return who has a socket open, of those we may look into."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, list[int]] = {}
    for pid in numbers(proc) if wanted else ():
        with suppress(OSError):
            for _, target in targets(proc / str(pid)):
                if target in wanted:
                    found.setdefault(wanted[target], []).append(pid)
    return found
