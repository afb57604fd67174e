"""Rules about connections to processes and hosts outside the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import TcpPolicy, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.facts import DumpFacts
    from gpuckpt.flow.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.outside import OutsidePeer

_OUTPUT: Final = frozenset({1, 2})
_JOURNAL: Final = "/run/systemd/journal/stdout"


def tcp_connected(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """CRIU refuses connected TCP sockets unless it is told what should become of them."""
    if choices.tcp is not TcpPolicy.NONE:
        return
    owners = {
        fd.inode: (task.process.pid, fd.fd)
        for task in reversed(facts.look.tasks)
        for fd in reversed(task.descriptors)
        if fd.kind == "socket"
    }
    ends = {(one.local, one.local_port, one.remote, one.remote_port) for one in facts.look.tcp}
    for one in facts.look.tcp:
        if not one.connected:
            continue
        pid, fd = owners.get(one.inode, (facts.tree.root.pid, -1))
        inside = (one.remote, one.remote_port, one.local, one.local_port) in ends
        yield blocker(
            "tcp-connected",
            f"fd {fd} {_end(one.local, one.local_port)} - {_end(one.remote, one.remote_port)}",
            "The process has a TCP connection, "
            + ("both ends of which are in the tree." if inside else "whose peer is elsewhere."),
            "--tcp established keeps it (same addresses at the restore), "
            "--tcp close gives the job a closed socket.",
            pid,
        )


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def unix_peer_outside(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU cannot dump half of a connection; a datagram socket finds a named peer again."""
    for peer in facts.look.peers:
        if peer.kind == "dgram" and peer.name.startswith("/"):
            continue
        yield blocker(
            "unix-peer-outside",
            f"fd {peer.fd} {peer.kind} socket{' to ' + peer.name if peer.name else ''}",
            f"The other end of this Unix socket belongs to {_whose(peer)}, outside the tree.",
            _peer_remedy(peer),
            peer.pid,
        )


def _whose(peer: OutsidePeer) -> str:
    if peer.holder is None:
        return "a process that cannot be seen from here"
    return f"process {peer.holder.pid} ({peer.holder.comm})"


def _peer_remedy(peer: OutsidePeer) -> str:
    if peer.name == _JOURNAL:
        return "Start the service with its output to a file (StandardOutput=append:/path)."
    return (
        "Dump the tree that holds both ends (a common ancestor), or let the job close the "
        "connection."
    )


def pipe_outside(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A restored pipe has nobody at its other end: output to it ends most jobs at once.

    Other descriptors are often inherited and never used, so they only warn.
    """
    for pipe in facts.look.pipes:
        who = f"process {pipe.holder.pid} ({pipe.holder.comm})"
        name = {0: "stdin ", 1: "stdout ", 2: "stderr "}.get(pipe.fd, "")
        thing = f"fd {pipe.fd} {name}pipe:[{pipe.inode}]"
        if pipe.writes:
            yield (blocker if pipe.fd in _OUTPUT else warning)(
                "pipe-outside",
                thing,
                f"It writes into a pipe that only {who} reads, outside the tree; after a restore "
                "a write would fail and, as a rule, end it.",
                "Start the job with its output to a file, or dump the tree that holds the reader.",
                pipe.pid,
            )
        else:
            yield warning(
                "pipe-outside",
                thing,
                f"It reads from a pipe that only {who} writes, outside the tree; after a restore "
                "it will see the end of input.",
                "Start the job with its input from a file or /dev/null.",
                pipe.pid,
            )


RULES: Final[tuple[Rule, ...]] = (tcp_connected, unix_peer_outside, pipe_outside)
