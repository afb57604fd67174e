"""Ports of this host, tried by binding to them as CRIU will."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.tools import connections
from gpuckpt.tools.procfs import read, text

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOCAL, _INODE = 1, 9  # columns of /proc/net/tcp


class PortState(StrEnum):
    """FREE to bind; LINGERING: only closed connections (TIME_WAIT) hold it; TAKEN by a socket."""

    FREE = "free"
    LINGERING = "lingering"
    TAKEN = "taken"


class Net:
    """The network of this host."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read from `proc` who holds a port."""
        self._proc = proc

    def port(self, protocol: str, address: str, port: int) -> PortState:
        """Say whether `address`:`port` could be bound; `protocol` is tcp or udp.

        CRIU binds with SO_REUSEADDR: closed connections are in its way only if their own sockets
        did not have it, as those accepted by a listener without it.
        """
        if _binds(protocol, address, port):
            return PortState.FREE
        if protocol == "tcp" and not self._held(port):
            return PortState.LINGERING
        return PortState.TAKEN

    def free_connections(self, pids: Iterable[int], log: Path) -> None:
        """Let the processes' TCP connections flow again after the CRIU of this log was ended.

        Raises:
            OSError: the kernel refused.
        """
        connections.free(pids, log)

    def _held(self, port: int) -> bool:
        """Whether a process holds a TCP socket with this local port: closed ones have no inode."""
        ending = f":{port:04X}"
        for table in ("tcp", "tcp6"):
            for line in text(read(self._proc / "net" / table) or b"").splitlines()[1:]:
                fields = line.split(None, _INODE + 1)
                if fields[_LOCAL].endswith(ending) and fields[_INODE] != "0":
                    return True
        return False


def _binds(protocol: str, address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    udp = protocol.startswith("udp")
    with socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as trial:
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # two UDP sockets that have it share a port, and each would miss the other's packets
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not udp)
        try:
            trial.bind((address, port))
        except OSError:
            return False
    return True
