"""Ports of this host, tried by binding to them."""

from __future__ import annotations

import socket
from enum import StrEnum


class PortState(StrEnum):
    """FREE to bind; LINGERING: only closed connections (TIME_WAIT) hold it; TAKEN by a socket."""

    FREE = "free"
    LINGERING = "lingering"
    TAKEN = "taken"


class Net:
    """The network of this host."""

    def port(self, protocol: str, address: str, port: int) -> PortState:
        """Say whether `address`:`port` could be bound; `protocol` is tcp or udp."""
        if _binds(protocol, address, port, reuse=False):
            return PortState.FREE
        # with SO_REUSEADDR a bind fails only because of a socket that is really there
        if protocol == "tcp" and _binds(protocol, address, port, reuse=True):
            return PortState.LINGERING
        return PortState.TAKEN


def _binds(protocol: str, address: str, port: int, *, reuse: bool) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_DGRAM if protocol.startswith("udp") else socket.SOCK_STREAM
    with socket.socket(family, kind) as trial:
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            trial.bind((address, port))
        except OSError:
            return False
    return True
