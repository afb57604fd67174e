"""Rules about TCP connections: those that lead out of the tree, and those nobody has accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import whose
from gpuckpt.flow.sight.tcp import Where, policy, sort
from gpuckpt.model import TcpPolicy, blocker, warning
from gpuckpt.tools import addresses
from gpuckpt.tools.sockets import SYN_SENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.sockets import InetSocket


def connected(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """A connection that leads out of the tree can be kept or closed; only its user knows which."""
    if choices.tcp is not TcpPolicy.NONE:
        return
    owners = _owners(facts)
    for one, where in sort(facts.look.tcp).items():
        if where is Where.OUTSIDE:
            pid, fd = owners.get(one.inode, (facts.tree.root.pid, -1))
            holder = facts.look.hosts.get(one.peer)
            peer = "elsewhere" if holder is None else f"{whose(holder)}, outside the tree"
            yield blocker(
                "tcp-connected",
                _thing(fd, one),
                f"The process has a TCP connection, whose peer is {peer}.",
                "Say what becomes of it: --tcp established keeps it (same addresses at the "
                "restore), --tcp close gives the job a closed socket.",
                pid,
            )


def unaccepted(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """CRIU (4.2.1) drops whoever waits to be accepted; one of the job's own would be reset."""
    owners = _owners(facts)
    undecided = choices.tcp is TcpPolicy.NONE
    for one, where in sort(facts.look.tcp).items():
        if where is Where.WAITING:
            pid, fd = owners.get(one.inode, (facts.tree.root.pid, -1))
            yield (blocker if undecided else warning)(
                "tcp-waiting",
                _thing(fd, one),
                "The process has a TCP connection to a port of the job, which has not accepted it "
                "yet; a dump would break it.",
                "Wait a moment, until the job has accepted it"
                + (", or give it up: --tcp close." if undecided else "."),
                pid,
            )


def clients(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """CRIU can drop clients that nobody has accepted, but only if it is told to."""
    owners = _owners(facts)
    own = [
        one.remote_port
        for one, where in sort(facts.look.tcp).items()
        if where is Where.WAITING and one.state != SYN_SENT
    ]
    for one in facts.look.tcp:
        waiting = one.waiting - own.count(one.local_port)
        if waiting > 0:
            pid, fd = owners.get(one.inode, (facts.tree.root.pid, -1))
            undecided = choices.tcp is TcpPolicy.NONE
            wait = "a client waits" if waiting == 1 else f"{waiting} clients wait"
            yield (blocker if undecided else warning)(
                "tcp-waiting",
                f"fd {fd} {_end(one.local, one.local_port)}",
                f"At this port {wait} to be accepted; the dump drops connections in waiting.",
                "Wait until the job has accepted them, or drop them: --tcp close or established."
                if undecided
                else "Wait until the job has accepted them, or let them connect again.",
                pid,
            )


def closed_inside(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """CRIU closes all or none."""
    inside = sum(where is Where.INSIDE for where in sort(facts.look.tcp).values())
    if choices.tcp is TcpPolicy.CLOSE and inside:
        yield warning(
            "tcp-closed-inside",
            "--tcp close",
            f"The tree's processes are connected to each other as well ({inside} sockets); that is "
            "closed too.",
            "Use --tcp established if they cannot do without, or see to it that they connect anew.",
            facts.tree.root.pid,
        )


def of_one_link(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """CRIU (4.2.1) binds a connection again without its interface, and such an address needs it."""
    if policy(facts.look.tcp, choices.tcp) is not TcpPolicy.ESTABLISHED:
        return
    owners = _owners(facts)
    for one in facts.look.tcp:
        if one.connected and addresses.of_one_link(one.local):
            pid, fd = owners.get(one.inode, (facts.tree.root.pid, -1))
            yield blocker(
                "tcp-link-local",
                _thing(fd, one),
                "The connection uses an address of one link only (fe80::); it could be dumped, but "
                "never be restored.",
                "Let the job use another address, ::1 if all is on this host, or give the "
                "connections up: --tcp close.",
                pid,
            )


def elsewhere(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU (4.2.1) fails at one that listens or talks, and makes others anew in our namespace."""
    for pid, fd in facts.look.elsewhere:
        yield blocker(
            "socket-namespace",
            f"fd {fd.fd} {fd.target} {fd.protocol}",
            "The socket belongs to another network namespace than its process.",
            "Let the job close it, or start it without network namespaces of its own.",
            pid,
        )


def _owners(facts: DumpFacts) -> dict[int, tuple[int, int]]:
    """Return a process and descriptor for each socket."""
    return {
        fd.inode: (task.process.pid, fd.fd)
        for task in reversed(facts.look.tasks)
        for fd in reversed(task.descriptors)
        if fd.kind == "socket"
    }


def _thing(fd: int, one: InetSocket) -> str:
    return f"fd {fd} {_end(one.local, one.local_port)} - {_end(one.remote, one.remote_port)}"


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


RULES: Final[tuple[Rule, ...]] = (
    connected,
    unaccepted,
    clients,
    closed_inside,
    of_one_link,
    elsewhere,
)
