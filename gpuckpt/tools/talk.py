"""The TCP sockets of a tree, looked at twice where the first look saw something half done.

Descriptors and connections cannot be read at the same instant: of a tree that connects and closes
all the time some end would always be missing. What is still so a moment later is so.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.tools.addresses import ends
from gpuckpt.tools.descriptors import targets
from gpuckpt.tools.sockets import LISTENING, InetSocket, tcp_sockets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuckpt.tools.addresses import Ends

MOMENT: Final = 0.02  # seconds


def talk(root: Path, pids: Iterable[int], inodes: set[int]) -> tuple[InetSocket, ...]:
    """Return the TCP sockets of a tree, whose sockets have these inodes; its root comes first."""
    tree = tuple(pids)
    net = f"{root}/{tree[0]}"
    found = tcp_sockets(net, inodes) if inodes else ()
    loose = _loose(found, inodes)
    if not loose:
        return found
    time.sleep(MOMENT)
    known = inodes | set(_held(root, tree))
    found = tcp_sockets(net, known)
    fleeting = _loose(found, known) - loose
    return tuple(
        replace(one, waiting=0) if one.state == LISTENING and ends(one) in fleeting else one
        for one in found
        if one.state == LISTENING or ends(one) not in fleeting
    )


def _loose(sockets: Iterable[InetSocket], known: set[int]) -> set[Ends]:
    """Return connections whose other end the tree does not have, and ports where clients wait."""
    return {
        ends(one)
        for one in sockets
        if one.waiting or (one.connected and (not one.peer or one.peer not in known))
    }


def _held(root: Path, pids: Iterable[int]) -> Iterator[int]:
    """Go through the sockets that the processes have now, by inode."""
    for pid in pids:
        with suppress(OSError):
            for _, target in targets(f"{root}/{pid}"):
                if target.startswith("socket:["):
                    yield int(target[len("socket:[") : -1])
