"""Addresses as text. An IPv4 address that an IPv6 socket uses (::ffff:1.2.3.4) is written as IPv4.

Packets know no difference, so such an end may well have one of the other kind as its peer.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Protocol

from gpuckpt.tools.procfs import read, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def end(written: str) -> tuple[str, int]:
    """Read ADDRESS:PORT: four-byte words of the machine's order, in hex."""
    address, _, port = written.partition(":")
    words = bytes.fromhex(address)
    raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    return plain(raw), int(port, 16)


def same_host(local: str, remote: str) -> bool:
    """Whether a connection between these addresses never leaves its host."""
    ends = (ipaddress.ip_address(local), ipaddress.ip_address(remote))
    return ends[0] == ends[1] or all(one.is_loopback for one in ends)


def overlap(one: str, other: str) -> bool:
    """Whether sockets bound to these addresses are in each other's way; "" is any address."""
    ends = [ipaddress.ip_address(plain(address)) for address in (one, other) if address]
    return len(ends) < 2 or ends[0] == ends[1] or any(end.is_unspecified for end in ends)  # noqa: PLR2004


def scopes(address: str, proc: Path) -> tuple[int, ...]:
    """Return the interfaces that an address means: one that counts on a single link needs one."""
    if not of_one_link(address):
        return (0,)
    fields = (line.split() for line in _lines(read(proc / "net" / "if_inet6") or b""))
    return tuple(int(one[1], 16) for one in fields if bytes.fromhex(one[0]) == packed(address))


def of_one_link(address: str) -> bool:
    """Whether an address means nothing without its interface (fe80::/10)."""
    found = ipaddress.ip_address(address)
    return isinstance(found, ipaddress.IPv6Address) and found.is_link_local


def of_host(trie: bytes, six: bytes) -> tuple[str, ...]:
    """Return by which addresses other hosts reach this one, from net/fib_trie and net/if_inet6.

    Loopback is every host's own, and an address of one link means nothing elsewhere. None at all
    where the kernel has no such table: half of them would be worse.
    """
    if not trie:
        return ()
    found: list[str | bytes] = [*_leaves(text(trie))]
    found += [bytes.fromhex(line.split()[0]) for line in _lines(six)]
    every = set(map(ipaddress.ip_address, found))
    wanted = [one for one in every if not (one.is_loopback or one.is_link_local)]
    return tuple(map(str, sorted(wanted, key=lambda one: (one.version, int(one)))))


def _leaves(trie: str) -> Iterator[str]:
    """Yield what the kernel's table of routes takes for its own; a leaf has its routes below it."""
    leaf = ""
    for line in trie.splitlines():
        mark, _, rest = line.strip().partition(" ")
        if mark == "|--":
            leaf = rest
        elif mark == "/32" and rest.endswith("host LOCAL"):
            yield leaf


def _lines(raw: bytes) -> list[str]:
    return text(raw).splitlines()
