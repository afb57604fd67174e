"""Addresses as text. An IPv4 address that an IPv6 socket uses (::ffff:1.2.3.4) is written as IPv4.

Packets know no difference, so such an end may well have one of the other kind as its peer.
"""

from __future__ import annotations

import ipaddress
from typing import Protocol

# of a connection: address and port of this end, address and port of the other
Ends = tuple[str, int, str, int]


class Connected(Protocol):
    """What has two ends, from wherever it is known."""

    @property
    def local(self) -> str:
        """The address of this end."""

    @property
    def local_port(self) -> int:
        """Its port."""

    @property
    def remote(self) -> str:
        """The address of the other end."""

    @property
    def remote_port(self) -> int:
        """Its port."""


def ends(one: Connected) -> Ends:
    """Return both ends of a connection, by which it is known."""
    return one.local, one.local_port, one.remote, one.remote_port


def plain(address: str | bytes) -> str:
    """Write an address, given as text or in network order, in the one way."""
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def packed(address: str) -> bytes:
    """Return an address in network order: 4 bytes, or 16."""
    return ipaddress.ip_address(plain(address)).packed


def same_host(local: str, remote: str) -> bool:
    """Whether a connection between these addresses never leaves its host."""
    ends = (ipaddress.ip_address(local), ipaddress.ip_address(remote))
    return ends[0] == ends[1] or all(one.is_loopback for one in ends)
