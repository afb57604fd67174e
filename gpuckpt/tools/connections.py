"""What a CRIU that was ended in mid-dump leaves on the TCP connections of a job, and its end.

For the time of a dump CRIU (4.2.1) drops their packets by an nftables table of its own and puts the
sockets into repair mode, in which nothing is sent. It takes both back when it fails; when it is
killed, the job runs on with connections that are silently dead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.procfs import link, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_RUN: Final = re.compile(rb"CRIU run id = ([0-9A-Za-z-]+)")
_TOUCHED: Final = b"Turning repair on for socket"
# 4.2.1 names its table after its run, and has room for so much of that
_RUN_IN_NAME: Final = 21
_TCP_REPAIR: Final = 19  # <linux/tcp.h>
_PIDFD_GETFD: Final = 438  # the same on every architecture
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# <linux/netfilter/nfnetlink.h>, <linux/netfilter/nf_tables.h>
_NETFILTER: Final = 12
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NFTABLES: Final = 10
_GET_TABLE: Final = _NFTABLES << 8 | 1
_DELETE_TABLE: Final = _NFTABLES << 8 | 2
_FAMILY_INET: Final = 1
_TABLE_NAME: Final = 1
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ENDS: Final = {2, 3}  # NLMSG_ERROR, NLMSG_DONE
_HEADERS: Final = 20  # struct nlmsghdr and struct nfgenmsg


def free(pids: Iterable[int], log: Path) -> None:
    """Let the connections of the processes flow again; `log` is that of the CRIU that ended.

    Nothing happens where CRIU has put everything back itself.

    Raises:
        OSError: the kernel refused.
    """
    tables = _tables(log)
    if not tables:
        return
    for table in tables:
        with suppress(FileNotFoundError):
            _delete(table)
    for pid in pids:
        _leave_repair(pid)


def tables() -> tuple[str, ...]:
    """Return the nftables tables that a CRIU has made and nobody has removed; none if not root."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as kernel:
            kernel.settimeout(10)
            kernel.bind((0, 0))
            kernel.send(_message(_GET_TABLE, _REQUEST | _DUMP, _FAMILY_INET, 0))
            return tuple(name for name in _names(kernel) if name.startswith("CRIU-"))
    except OSError:
        return ()  # no nftables in this kernel


def cut(pids: Iterable[int], log: Path) -> tuple[str, ...]:
    """Say what `free` would have to undo, one line a thing; nothing is changed.

    Raises:
        OSError: the kernel refused to tell.
    """
    mine = _tables(log)
    there = [table for table in tables() if table in mine] if mine else []
    held = [pid for pid in pids if any(_repairing(pid))] if mine else []
    return (
        *(f"packet filter table {table}" for table in there),
        *(f"TCP connections of process {pid}" for pid in held),
    )


def _tables(log: Path) -> list[str]:
    """Return the table that CRIU has made; none if it did not come to any connection."""
    run, touched = "", False
    if log.exists():
        with log.open("rb") as file:
            for line in file:
                if found := _RUN.search(line):
                    run = found[1].decode()
                touched = touched or _TOUCHED in line
    return [f"CRIU-{run[:_RUN_IN_NAME]}", f"CRIU-{run}"] if run and touched else []


def _leave_repair(pid: int) -> None:
    """Take every TCP socket of a process out of repair mode; one that is gone has none."""
    for one in _repairing(pid):
        one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)


def _repairing(pid: int) -> Iterator[socket.socket]:
    """Go through the TCP sockets of a process that are in repair mode, as copies of ours."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            for fd in numbers(f"/proc/{pid}/fd"):
                if (link(f"/proc/{pid}/fd/{fd}") or "").startswith("socket:"):
                    one = _copy(pidfd, fd)
                    if one is not None:
                        with one:
                            if _in_repair(one):
                                yield one
        finally:
            os.close(pidfd)


def _copy(pidfd: int, fd: int) -> socket.socket | None:
    """Return a socket of another process, None if it has just been closed."""
    copy = int(_LIBC.syscall(_PIDFD_GETFD, pidfd, fd, 0))
    if copy >= 0:
        return socket.socket(fileno=copy)
    number = ctypes.get_errno()
    if number in {errno.EBADF, errno.ESRCH}:
        return None
    raise OSError(number, os.strerror(number))


def _in_repair(one: socket.socket) -> bool:
    if one.family not in {socket.AF_INET, socket.AF_INET6} or one.proto != socket.IPPROTO_TCP:
        return False
    return one.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR) != 0


def _delete(table: str) -> None:
    """Delete one nftables table.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    name = table.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(name), _TABLE_NAME) + name
    attribute += bytes(-len(attribute) % 4)
    batch = (
        _message(_BATCH_BEGIN, _REQUEST, 0, _NFTABLES)
        + _message(_DELETE_TABLE, _REQUEST | _ACK, _FAMILY_INET, 0, attribute)
        + _message(_BATCH_END, _REQUEST, 0, _NFTABLES)
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as kernel:
        kernel.settimeout(10)
        kernel.bind((0, 0))
        kernel.send(batch)
        answer = kernel.recv(65536)
    # struct nlmsghdr, then struct nlmsgerr, which begins with the negated error number
    (refused,) = struct.unpack_from("=i", answer, 16)
    if refused:
        raise OSError(-refused, os.strerror(-refused), table)


def _message(kind: int, flags: int, family: int, subsystem: int, payload: bytes = b"") -> bytes:
    """Return one netlink message; nfnetlink's own header has the subsystem in network order."""
    body = struct.pack("=BB", family, 0) + struct.pack("!H", subsystem) + payload
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


def _names(kernel: socket.socket) -> Iterator[str]:
    """Go through the names of the tables in the kernel's answer, to its end."""
    while True:
        answer = kernel.recv(1 << 16)
        while answer:
            length, kind = struct.unpack_from("=IH", answer)
            if kind in _ENDS:
                return
            yield from _table_name(answer[_HEADERS:length])
            answer = answer[_aligned(length) :]


def _table_name(attributes: bytes) -> Iterator[str]:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _TABLE_NAME:
            yield attributes[4:length].rstrip(b"\0").decode()
        attributes = attributes[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
