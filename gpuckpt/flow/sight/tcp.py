"""Where the TCP connections of a tree lead, and what becomes of them if nobody says."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from gpuckpt.errors import DumpFailed
from gpuckpt.model import TcpPolicy
from gpuckpt.tools.addresses import ends, same_host
from gpuckpt.tools.sockets import LISTENING, TOLD_OF_END

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.image.outside import ConnectionRecord
    from gpuckpt.tools.openfiles import Connection
    from gpuckpt.tools.sockets import InetSocket

    _AnyConnection = Connection | ConnectionRecord


class Where(Enum):
    """Who has the other end of a connection.

    INSIDE: the tree. WAITING: the tree as well, but it listens there and has not accepted it yet.
    ABANDONED: nobody any more; it has said its last, and what is left to read comes along.
    OUTSIDE: anybody else.
    """

    INSIDE = auto()
    WAITING = auto()
    ABANDONED = auto()
    OUTSIDE = auto()


def sort(sockets: Iterable[InetSocket]) -> dict[InetSocket, Where]:
    """Say of each connection of a tree who has its other end; `sockets` are all of the tree."""
    listed = tuple(sockets)
    ours = {one.inode for one in listed}
    listeners = {(one.local, one.local_port) for one in listed if one.state == LISTENING}
    return {one: _where(one, ours, listeners) for one in listed if one.connected}


def _where(one: InetSocket, ours: set[int], listeners: set[tuple[str, int]]) -> Where:
    if one.peer:
        return Where.INSIDE if one.peer in ours else Where.OUTSIDE
    if not one.here:
        return Where.OUTSIDE
    if one.state in TOLD_OF_END:
        return Where.ABANDONED
    doors = {(address, one.remote_port) for address in (one.remote, "0.0.0.0", "::")}  # noqa: S104
    return Where.WAITING if doors & listeners else Where.OUTSIDE


def policy(sockets: Iterable[InetSocket], chosen: TcpPolicy) -> TcpPolicy:
    """Return what becomes of a tree's connections: what was chosen, else kept if none leads out."""
    found = set(sort(sockets).values())
    kept = bool(found) and found <= {Where.INSIDE, Where.ABANDONED}
    return TcpPolicy.ESTABLISHED if kept and chosen is TcpPolicy.NONE else chosen


def story(sockets: Iterable[InetSocket]) -> str:
    """Say why a tree's connections are kept though nobody has asked for it."""
    found = list(sort(sockets).values())
    inside, gone = found.count(Where.INSIDE) // 2, found.count(Where.ABANDONED)
    told = [f"{_count(inside)} with both ends in the tree"] if inside else []
    told += [f"{_count(gone)} that nobody has the other end of"] if gone else []
    return f"{' and '.join(told)}: kept, as by --tcp established"


def still_inside(connections: Iterable[Connection]) -> None:
    """See that none leads out of the tree of those that CRIU has dumped.

    Raises:
        DumpFailed: one was made since the tree was looked at.
    """
    if stranger := leads_out(connections):
        raise DumpFailed(
            f"the job has just connected to {stranger.remote}:{stranger.remote_port}, outside the "
            "tree",
            hint="Say what becomes of such connections (--tcp established or close), or dump "
            "again when it is over.",
        )


def leads_out(connections: Iterable[_AnyConnection]) -> _AnyConnection | None:
    """Return one whose other end the tree has not, None if there is none."""
    listed = tuple(connections)
    here = set(map(ends, listed))
    for one in listed:
        other = (one.remote, one.remote_port, one.local, one.local_port)
        if other not in here and not (one.closing and same_host(one.local, one.remote)):
            return one
    return None


def _count(number: int) -> str:
    return f"{number} TCP connection{'s' if number != 1 else ''}"
