"""Sockets by inode: TCP from /proc/net, Unix sockets and their peers from the kernel's sock_diag.

/proc/net/unix does not say who is connected to whom; NETLINK_SOCK_DIAG does (Linux 3.3).
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.tools import netlink
from gpuckpt.tools.addresses import end, same_host
from gpuckpt.tools.procfs import read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

ESTABLISHED: Final = 1
SYN_SENT: Final = 2
LISTENING: Final = 10
UNCONNECTED: Final = 7
# CLOSE_WAIT, LAST_ACK, CLOSING: the other end has said that nothing more will come from it
TOLD_OF_END: Final = frozenset({8, 9, 11})
# and FIN_WAIT1, FIN_WAIT2: so has this one
CLOSING: Final = TOLD_OF_END | {4, 5}

_REQUEST: Final = struct.Struct("=BBHIIIII")  # struct unix_diag_req
_ANSWER: Final = struct.Struct("=BBBBIII")  # struct unix_diag_msg
_PATH: Final = struct.Struct("=II")  # struct unix_diag_vfs
_SHOW_NAME, _SHOW_FILE, _SHOW_PEER, _SHOW_WAITING = 1, 2, 4, 8
_NAME, _FILE, _PEER, _WAITING = 0, 1, 2, 3
KINDS: Final = {1: "stream", 2: "dgram", 5: "seqpacket"}  # of Unix sockets, by SOCK_...
_MINOR_BITS: Final = 20  # of a device's number, as the kernel has it
_INODE: Final = 9  # the column of /proc/net/tcp, and of netlink
_UNREAD: Final = 4  # of netlink: bytes in its queue
_MAPPED: Final = "0000000000000000FFFF0000"  # ::ffff:0:0/96, as /proc/net/tcp6 writes it


class InetSocket(Value, frozen=True):
    """One TCP socket; `state` as in <net/tcp_states.h>.

    `waiting` counts, for a listener, the clients that nobody has accepted yet; `peer` is the inode
    of the other end if that is on this host, 0 otherwise.
    """

    inode: int
    local: str
    local_port: int
    remote: str
    remote_port: int
    state: int
    waiting: int = 0
    peer: int = 0

    @property
    def connected(self) -> bool:
        """Whether it has, is making or is closing a connection."""
        return self.state not in {LISTENING, UNCONNECTED}

    @property
    def here(self) -> bool:
        """Whether its other end can only be on this very host."""
        return same_host(self.local, self.remote)


class UnixSocket(Value, frozen=True):
    """One Unix socket; `peer` is the inode it is connected to, 0 if none.

    That of the listener if it has not accepted the connection yet; a listener's `waiting` are the
    inodes of those that wait for it. `file` is the device and the inode, or its lower half, of the
    path that it is bound to. `talks`: it is connected, and may have its name from a listener.
    """

    inode: int
    kind: str
    name: str
    peer: int
    waiting: tuple[int, ...] = ()
    file: tuple[int, int] = (0, 0)
    talks: bool = False


def tcp_sockets(process: Path | str, inodes: Container[int]) -> tuple[InetSocket, ...]:
    """Return those TCP sockets that have one of the inodes, in this process's net namespace."""
    ours: list[list[str]] = []
    everybody: dict[tuple[str, str], int] = {}
    for table in ("tcp", "tcp6"):
        lines = text(read(f"{process}/net/{table}") or b"").splitlines()[1:]
        for line in lines:
            fields = line.split(None, _INODE + 1)  # a busy host has 100,000 of them
            if len(fields) > _INODE:
                inode = int(fields[_INODE])
                everybody[_plain_end(fields[1]), _plain_end(fields[2])] = inode
                if inode in inodes:
                    ours.append(fields)
    return tuple(
        _tcp(fields, everybody.get((_plain_end(fields[2]), _plain_end(fields[1])), 0))
        for fields in ours
    )


def unread_netlink(process: Path | str, inodes: Container[int]) -> tuple[int, ...]:
    """Return the inodes of those netlink sockets in which messages wait to be read."""
    found: list[int] = []
    for line in text(read(f"{process}/net/netlink") or b"").splitlines()[1:]:
        fields = line.split()
        if len(fields) > _INODE and int(fields[_INODE]) in inodes and int(fields[_UNREAD]):
            found.append(int(fields[_INODE]))
    return tuple(found)


def unix_sockets() -> dict[int, UnixSocket]:
    """Return all Unix sockets of this process's net namespace by inode.

    Raises:
        OSError: the kernel has no unix_diag.
    """
    show = _SHOW_NAME | _SHOW_FILE | _SHOW_PEER | _SHOW_WAITING
    body = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)
    found = (_unix(payload) for payload in netlink.dump(netlink.SOCK_DIAG, netlink.BY_FAMILY, body))
    known = {one.inode: one for one in found}
    listeners = {inode: one.inode for one in known.values() for inode in one.waiting}
    for inode in listeners.keys() & known.keys():
        if not known[inode].peer:
            known[inode] = replace(known[inode], peer=listeners[inode])
    return known


def _unix(payload: bytes) -> UnixSocket:
    _, kind, state, _, inode, *_ = _ANSWER.unpack_from(payload)
    name, peer, waiting, file = "", 0, b"", (0, 0)
    for attribute, value in netlink.attributes(payload[_ANSWER.size :]):
        if attribute == _NAME:
            name = written(value)
        elif attribute == _FILE:
            number, device = _PATH.unpack_from(value)
            parts = device >> _MINOR_BITS, device & (1 << _MINOR_BITS) - 1
            file = os.makedev(*parts), number
        elif attribute == _PEER:
            peer = int.from_bytes(value, "little")
        elif attribute == _WAITING:
            waiting = value
    inodes = struct.unpack_from(f"={len(waiting) // 4}I", waiting)
    talks = kind != socket.SOCK_DGRAM and state == ESTABLISHED
    return UnixSocket(inode, KINDS.get(kind, str(kind)), name, peer, inodes, file, talks)


def written(name: bytes) -> str:
    """Write the name of a Unix socket for people: a leading zero byte, which no path has, as @."""
    return text(name.replace(b"\0", b"@", 1) if name[:1] == b"\0" else name.rstrip(b"\0"))


def _tcp(fields: list[str], peer: int) -> InetSocket:
    local, local_port = end(fields[1])
    remote, remote_port = end(fields[2])
    state = int(fields[3], 16)
    waiting = int(fields[4].partition(":")[2], 16) if state == LISTENING else 0
    return InetSocket(
        int(fields[_INODE]), local, local_port, remote, remote_port, state, waiting, peer
    )


def _plain_end(written: str) -> str:
    """Write an IPv4 address the same way whether its socket is one of IPv6 or not."""
    return written.removeprefix(_MAPPED)
