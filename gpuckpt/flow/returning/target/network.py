"""Rules about the ports, addresses and connections that a job will have again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.returning import doubts
from gpuckpt.flow.returning.target.rule import Rule, name, some
from gpuckpt.model import TcpPolicy, blocker, warning
from gpuckpt.tools.diag import NAMES
from gpuckpt.tools.net import PortState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.returning.target.ports import SeenPort
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding
    from gpuckpt.tools.diag import Connection
    from gpuckpt.tools.unixnames import SocketName


def ports(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """CRIU binds every listener again; it ends at the first that it cannot."""
    for seen in facts.ports:
        if seen.state is PortState.TAKEN:
            yield _taken(seen, facts)
        elif seen.state is PortState.LINGERING:
            yield _lingering(seen)
        elif seen.state is PortState.NO_ADDRESS:
            yield _no_address(seen.listener.address, _place(seen))


def _taken(seen: SeenPort, facts: TargetFacts) -> Finding:
    if seen.holders:
        first = seen.holders[0]
        own = first.pid in facts.running
        who = f"is in use by {'the job itself, ' if own else ''}{name(first)}"
        pid: int | None = first.pid
    else:
        who, pid = "is in use here, by whom cannot be seen", None
    return blocker(
        "port-taken",
        _place(seen),
        f"The port {seen.listener.port} ({seen.listener.protocol}), which the job had, {who}.",
        "End what holds it and retry.",
        pid,
    )


def _lingering(seen: SeenPort) -> Finding:
    return warning(
        "port-lingering",
        _place(seen),
        f"Connections closed a moment ago (TIME_WAIT) hold port {seen.listener.port}.",
        "Nothing to do: a restore has the kernel forget them, or waits for that, about a minute.",
    )


def same_ends(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """The very connection of the job is here: of an earlier copy of it, or of somebody else."""
    open_ones = [one for one in facts.remains if one.inode or one.state not in NAMES]
    both = {one.ends for one in open_ones}
    for one in open_ones:
        back = one.ends[2:] + one.ends[:2]
        if back in both and back < one.ends:  # both of its ends are here: told once
            continue
        who = facts.talkers.get(one.ends[1])
        yield blocker(
            "connection-taken",
            _between(one),
            "A connection between the ends that one of the job's had is open here, "
            f"{'by whom cannot be seen' if who is None else 'by ' + name(who)}.",
            "End what has it and retry.",
            None if who is None else who.pid,
        )
    ports = {one.listener.port for one in facts.ports if one.state is PortState.LINGERING}
    closed = [one for one in facts.remains if one not in open_ones and one.ends[1] not in ports]
    if closed:
        was = "A connection" if len(closed) == 1 else f"{len(closed)} connections"
        states = ", ".join(sorted({NAMES[one.state] for one in closed}))
        yield warning(
            "port-lingering",
            _between(closed[0]),
            f"{was} between ends that the job had closed a moment ago ({states}).",
            "Nothing to do: a restore has the kernel forget that, or waits for it.",
        )


def _between(one: Connection) -> str:
    near, far = (f"{address}:{port}" for address, port in (one.ends[:2], one.ends[2:]))
    return f"tcp {near} - {far}"


def _no_address(address: str, place: str) -> Finding:
    """CRIU 4.2.1 binds IPv6 with IP_FREEBIND, so there a missing address stops nothing."""
    make = warning if ":" in address else blocker
    return make(
        "address-missing",
        place,
        f"The job was bound to {address}, an address that this host does not have.",
        f"Give it to an interface (ip address add {address} dev NAME), or restore where it is.",
    )


def connections(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Say what becomes of every connection; the far end is not ours to look at."""
    listed = manifest.outside.connections
    if not listed:
        return
    # a pair inside the tree is closed or kept on both sides at once, and nobody has the other end
    # of one that was closed here: a dump without --tcp has seen to that
    ends = {(one.local, one.local_port) for one in listed}
    peers = [
        f"{one.remote}:{one.remote_port}"
        for one in listed
        if (one.remote, one.remote_port) not in ends
        and not (one.closing and manifest.options.tcp_by_itself)
    ]
    if manifest.options.tcp is TcpPolicy.CLOSE:
        if peers:
            yield _closed(peers)
        return
    for address, here in facts.addresses.items():
        if not here:
            yield _no_address(address, f"tcp {address}")
    if peers:
        yield _kept(peers)


def _closed(peers: list[str]) -> Finding:
    return warning(
        "tcp-closed",
        f"tcp {some(peers)}",
        f"The job's connection to {some(peers)} was closed with the dump, and its peer knows.",
        "The job must connect again by itself; look whether it did.",
    )


def _kept(peers: list[str]) -> Finding:
    return warning(
        "tcp-kept",
        f"tcp {some(peers)}",
        f"The job's connection to {some(peers)} goes on as if nothing had happened.",
        "A peer that has given it up meanwhile answers with a reset: the job must then connect "
        "again.",
    )


def sockets(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A name that is no path can be had once; at a path CRIU would put its socket in his place."""
    for bound, user in facts.sockets.items():
        if user is None:
            whose = "in use here, by whom cannot be seen"
        else:
            own = "the job itself, " if user.pid in facts.running else ""
            whose = f"in use by {own}{name(user)}"
        yield blocker(
            "socket-taken",
            f"unix {bound.words}",
            f"The name {bound.words} of a Unix socket that the job had is {whose}.",
            _room_for(bound),
            None if user is None else user.pid,
        )


def _room_for(bound: SocketName) -> str:
    """Say what helps; NCCL's ranks make up each other's names from what all of them know."""
    end = "End what holds it and retry; two copies of such a job cannot run on one host"
    if bound.communicators:
        return f"{end}, but an image made with `dump --quiesce` holds no communicators."
    return f"{end}."


def pipes(manifest: Manifest, _: TargetFacts) -> Iterator[Finding]:
    """Whoever had the other end of a pipe does not come along."""
    for one in manifest.outside.pipes:
        if one.fd in doubts.STANDARD:
            yield doubts.lost_end(one.pid, one.fd, writes=one.writes, holder=one.holder)


def _place(seen: SeenPort) -> str:
    one = seen.listener
    return f"{one.protocol} {one.address}:{one.port}"


RULES: Final[tuple[Rule, ...]] = (ports, same_ends, sockets, connections, pipes)
