"""nftables tables: those of CRIU, and our own that keep connections silent for a moment.

A table of ours drops every packet of the connections it names, both ways. Packets that carry
CRIU's mark pass: by these it brings half closed connections back (4.2.1).
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools import netlink
from gpuckpt.tools.addresses import packed
from gpuckpt.tools.netlink import attribute, attributes, nested

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuckpt.tools.addresses import Ends

CRIU: Final = "CRIU-"
_MARK: Final = 0xC114  # CRIU's own packets (soccr.h)
# <linux/netfilter/nfnetlink.h>, <linux/netfilter/nf_tables.h>
_NETFILTER: Final = 12
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NFTABLES: Final = 10
_NEW_TABLE, _GET_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE, _NEW_SET, _NEW_ELEMENT = (
    _NFTABLES << 8 | one for one in (0, 1, 2, 3, 6, 9, 12)
)
_INET: Final = 1
_TABLE_NAME: Final = 1
_LIST_ELEMENT: Final = 1
_HOOKS: Final = {"input": 1, "output": 3}  # NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT
_FIRST: Final = 8  # NFT_REG32_00, four bytes each
_MARK_KEY, _FAMILY_KEY, _PROTOCOL_KEY = 3, 15, 16  # enum nft_meta_keys
_NETWORK, _TRANSPORT = 1, 2
_DROP, _ACCEPT = 0, 1
_TCP: Final = 6
# of a packet of each family: NFPROTO, where its addresses are, and how long
_FAMILIES: Final = {4: (2, (12, 16), 4), 6: (10, (8, 24), 16)}
# one message to the kernel has to fit into a socket's buffer, one list into 64 KiB
_AT_ONCE: Final = 500


def tables(prefix: str) -> tuple[str, ...]:
    """Return the tables whose names begin so; none if not root, or without nftables."""
    try:
        found = [
            value.rstrip(b"\0").decode()
            for answer in netlink.dump(_NETFILTER, _GET_TABLE, _head(_INET))
            for kind, value in attributes(answer[len(_head(_INET)) :])
            if kind == _TABLE_NAME
        ]
    except OSError:
        return ()
    return tuple(name for name in found if name.startswith(prefix))


def delete(table: str) -> None:
    """Delete one table.

    Raises:
        FileNotFoundError: there is none of that name.
        OSError: the kernel refused.
    """
    _batch([(_DELETE_TABLE, 0, attribute(_TABLE_NAME, _word(table)))])


def hold(table: str, connections: Iterable[Ends]) -> None:
    """Drop all packets of these connections, by a new table of this name.

    Raises:
        OSError: the kernel refused; then there is no such table.
    """
    _batch([*_frame(table)])
    try:
        for version in _FAMILIES:
            keys = sorted(_keys(connections, version))
            for start in range(0, len(keys), _AT_ONCE):
                _batch([_elements(table, version, keys[start : start + _AT_ONCE])])
    except OSError:
        with suppress(OSError):
            delete(table)
        raise


def _frame(table: str) -> Iterator[tuple[int, int, bytes]]:
    """Give the table, its sets, chains and rules."""
    new, name = netlink.CREATE | netlink.EXCLUSIVE, attribute(1, _word(table))
    yield _NEW_TABLE, new, name
    for version, (_, _, size) in _FAMILIES.items():
        # address and port, twice; a port takes a whole register
        length = _number(2 * (size + 4))
        key = attribute(3, _number(0)) + attribute(4, _number(0)) + attribute(5, length)
        yield _NEW_SET, new, name + attribute(2, _word(_set(version))) + key + _set_id(10, version)
    for chain, hook in _HOOKS.items():
        place = nested(4, attribute(1, _number(hook)), attribute(2, _number(0)))
        kind = attribute(7, _word("filter"))
        yield _NEW_CHAIN, new, name + attribute(3, _word(chain)) + place + kind
        rule = name + attribute(2, _word(chain))
        yield _NEW_RULE, netlink.CREATE | 0x800, rule + nested(4, *_marked())
        for version in _FAMILIES:
            yield _NEW_RULE, netlink.CREATE | 0x800, rule + nested(4, *_silent(version))


def _marked() -> Iterator[bytes]:
    """Let CRIU's own packets pass."""
    yield _meta(_MARK_KEY)
    yield _equals(struct.pack("=I", _MARK))
    yield _verdict(_ACCEPT)


def _silent(version: int) -> Iterator[bytes]:
    """Drop a TCP packet whose addresses and ports are in the set."""
    family, places, size = _FAMILIES[version]
    yield _meta(_FAMILY_KEY)
    yield _equals(bytes([family]))
    yield _meta(_PROTOCOL_KEY)
    yield _equals(bytes([_TCP]))
    register = _FIRST
    for place, port in zip(places, (0, 2), strict=True):
        yield _payload(register, _NETWORK, place, size)
        yield _payload(register + size // 4, _TRANSPORT, port, 2)
        register += size // 4 + 1
    yield _expression(
        "lookup",
        attribute(1, _word(_set(version))),
        attribute(2, _number(_FIRST)),
        _set_id(4, version),
    )
    yield _verdict(_DROP)


def _meta(key: int) -> bytes:
    return _expression("meta", attribute(2, _number(key)), attribute(1, _number(_FIRST)))


def _equals(value: bytes) -> bytes:
    data = nested(3, attribute(1, value))
    return _expression("cmp", attribute(1, _number(_FIRST)), attribute(2, _number(0)), data)


def _payload(register: int, base: int, offset: int, length: int) -> bytes:
    numbers = (register, base, offset, length)
    return _expression("payload", *(attribute(n, _number(one)) for n, one in enumerate(numbers, 1)))


def _verdict(code: int) -> bytes:
    data = nested(2, nested(2, attribute(1, _number(code))))
    return _expression("immediate", attribute(1, _number(0)), data)


def _expression(name: str, *data: bytes) -> bytes:
    return nested(_LIST_ELEMENT, attribute(1, _word(name)), nested(2, *data))


def _elements(table: str, version: int, keys: Sequence[bytes]) -> tuple[int, int, bytes]:
    listed = (nested(_LIST_ELEMENT, nested(1, attribute(1, key))) for key in keys)
    place = attribute(1, _word(table)) + attribute(2, _word(_set(version)))
    return _NEW_ELEMENT, netlink.CREATE, place + nested(3, *listed)


def _keys(connections: Iterable[Ends], version: int) -> set[bytes]:
    """Return the keys of one family's packets, those of both directions."""
    found: set[bytes] = set()
    for local, local_port, remote, remote_port in connections:
        here, there = _end(local, local_port), _end(remote, remote_port)
        if len(here) == len(there) == _FAMILIES[version][2] + 4:
            found |= {here + there, there + here}
    return found


def _end(address: str, port: int) -> bytes:
    return packed(address) + struct.pack("!HH", port, 0)


def _set(version: int) -> str:
    return f"ends{version}"


def _set_id(kind: int, version: int) -> bytes:
    """Name a set within its batch, in which it has no other identity yet."""
    return attribute(kind, _number(version))


def _batch(messages: Sequence[tuple[int, int, bytes]]) -> None:
    """Do all of it or nothing."""
    begin = netlink.message(_BATCH_BEGIN, 0, _head(0, _NFTABLES), 0)
    parts = [
        netlink.message(
            kind,
            flags | (netlink.ACK if number == len(messages) else 0),
            _head(_INET) + body,
            number,
        )
        for number, (kind, flags, body) in enumerate(messages, 1)
    ]
    end = netlink.message(_BATCH_END, 0, _head(0, _NFTABLES), len(messages) + 1)
    netlink.ask(_NETFILTER, [begin, *parts, end], len(messages))


def _head(family: int, subsystem: int = 0) -> bytes:
    """Return struct nfgenmsg."""
    return struct.pack("=BB", family, 0) + struct.pack("!H", subsystem)


def _number(value: int) -> bytes:
    return struct.pack("!I", value)


def _word(value: str) -> bytes:
    return value.encode() + b"\0"
