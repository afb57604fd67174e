"""Ports of this host, tried by binding to them as CRIU will."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.tools import connections, diag, filters, unixnames
from gpuckpt.tools.addresses import end, overlap, plain, scopes
from gpuckpt.tools.descriptors import targets
from gpuckpt.tools.procfs import numbers, read, text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gpuckpt.tools.addresses import Ends
    from gpuckpt.tools.diag import Connection
    from gpuckpt.tools.unixnames import SocketName

_LOCAL, _STATE, _INODE = 1, 3, 9  # columns of /proc/net/tcp
_LISTENING = "0A"


class PortState(StrEnum):
    """Whether a port can be bound.

    FREE; LINGERING: only closed connections (TIME_WAIT) hold it; TAKEN by a socket; NO_ADDRESS:
    this host does not have the address.
    """

    FREE = "free"
    LINGERING = "lingering"
    TAKEN = "taken"
    NO_ADDRESS = "no_address"


class Net:
    """The network of this host."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read from `proc` who holds a port."""
        self._proc = proc

    def port(self, protocol: str, address: str, port: int, *, dual: bool = False) -> PortState:
        """Say whether `address`:`port` could be bound; `protocol` is tcp or udp.

        With `dual` for IPv4 as well, by a socket of IPv6: its closed connections may be of either.

        CRIU binds with SO_REUSEADDR: closed connections are in its way only if their own sockets
        did not have it, as those accepted by a listener without it.
        """
        # the address of one link may be that of several: it has to be free on all of them
        tried = (
            _bind(protocol, address, port, dual=dual, scope=scope)
            for scope in scopes(address, self._proc)
        )
        refused = max(tried, default=errno.EADDRNOTAVAIL)
        if not refused:
            return PortState.FREE
        if refused == errno.EADDRNOTAVAIL:
            return PortState.NO_ADDRESS
        if protocol == "tcp" and not self._held(address, port):
            return PortState.LINGERING
        return PortState.TAKEN

    def free_connections(self, pids: Iterable[int], log: Path) -> None:
        """Let the processes' TCP connections flow again after the CRIU of this log was ended.

        Raises:
            OSError: the kernel refused.
        """
        connections.free(pids, log)

    def holders(
        self, protocol: str, port: int, address: str = "", *, listening: bool = False
    ) -> tuple[int, ...]:
        """Return the processes that hold a socket with this local port, those we may look into.

        With an address only sockets count that are in the way of one there, with `listening` only
        TCP sockets that wait for connections.
        """
        only = listening and protocol == "tcp"
        inodes = self._inodes(protocol, port, address, listening=only)
        wanted = {f"socket:[{inode}]" for inode in inodes}
        found: list[int] = []
        for pid in numbers(self._proc) if wanted else ():
            with suppress(OSError):
                if any(target in wanted for _, target in targets(self._proc / str(pid))):
                    found.append(pid)
        return tuple(found)

    def unix_users(self, names: Iterable[SocketName]) -> dict[SocketName, tuple[int, ...]]:
        """Return those names of Unix sockets that are in use, with the processes seen to have them.

        A path is in use if a socket is bound to what lies there now.
        """
        return unixnames.users(self._proc, names)

    def cut(self, pids: Iterable[int], log: Path) -> tuple[str, ...]:
        """Say what `free_connections` would have to undo, one line a thing.

        Raises:
            OSError: the kernel refused to tell.
        """
        return connections.cut(pids, log)

    def tables(self) -> tuple[str, ...]:
        """Return the packet filter tables that a CRIU has made and nobody has removed."""
        return filters.tables(filters.CRIU)

    def hold(self, name: str, ends: Iterable[Ends]) -> None:
        """Drop every packet of these connections, by a packet filter table `name`.

        Raises:
            OSError: the kernel refused, and there is no such table.
        """
        filters.hold(name, ends)

    def release(self, name: str) -> None:
        """Let the packets pass again; nothing happens if they do.

        Raises:
            OSError: the kernel refused.
        """
        with suppress(FileNotFoundError):
            filters.delete(name)

    def held(self, name: str) -> bool:
        """Whether there is such a table."""
        return name in filters.tables(name)

    def remains(
        self, places: Collection[tuple[str, int]], ends: Collection[Ends]
    ) -> tuple[Connection, ...]:
        """Return connections of this host at these addresses and ports, or with these very ends.

        Those at a port only if nobody has them any more. Others' with the same port at another
        address are in nobody's way.
        """
        exact = {(plain(here), near, plain(there), far) for here, near, there, far in ends}
        try:
            return tuple(
                one
                for one in diag.connections()
                if one.ends in exact or (one.closed and _at(one, places))
            )
        except OSError:  # no sock_diag: what is in the way shows when it is bound
            return ()

    def forget(self, one: Connection) -> bool:
        """Let the kernel forget a closed connection; False if it cannot.

        Raises:
            OSError: it refused for a reason of its own.
        """
        return one.closed and diag.destroy(one)

    def _held(self, address: str, port: int) -> bool:
        """Whether a process holds a TCP socket that is in the way of one there."""
        return next(self._inodes("tcp", port, address), None) is not None

    def _inodes(
        self, protocol: str, port: int, address: str, *, listening: bool = False
    ) -> Iterator[str]:
        """Go through the sockets in the way of one there: closed ones have no inode."""
        ending = f":{port:04X}"
        for table in (protocol, f"{protocol}6"):
            for line in text(read(self._proc / "net" / table) or b"").splitlines()[1:]:
                fields = line.split(None, _INODE + 1)
                if listening and fields[_STATE] != _LISTENING:
                    continue
                if not fields[_LOCAL].endswith(ending) or fields[_INODE] == "0":
                    continue
                if overlap(address, end(fields[_LOCAL])[0]):
                    yield fields[_INODE]


def _at(one: Connection, places: Collection[tuple[str, int]]) -> bool:
    """Whether the near end of a connection is in the way of a socket at one of these."""
    return any(one.ends[1] == port and overlap(address, one.ends[0]) for address, port in places)


def _bind(protocol: str, address: str, port: int, *, dual: bool, scope: int) -> int:
    """Return 0 if it can be bound, else the error's number."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    udp = protocol.startswith("udp")
    with socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as trial:
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        # two UDP sockets that have it share a port, and each would miss the other's packets
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not udp)
        try:
            trial.bind((address, port, 0, scope) if family == socket.AF_INET6 else (address, port))
        except OSError as why:
            return why.errno or errno.EINVAL
    return 0
