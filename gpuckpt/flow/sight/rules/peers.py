"""Rules about connections to processes and hosts outside the tree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import whose as _whose
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_OUTPUT: Final = frozenset({1, 2})
# well-known servers by the start of their socket's name, and how a job does without them
_SERVERS: Final = (
    (
        r"/run/systemd/journal/stdout",
        "the journal",
        "Start the service with its output to a file (StandardOutput=append:/path).",
    ),
    (r"(/dev/log|/run/systemd/journal/)", "the system log", "Let the job log to a file."),
    (
        r"(/run/dbus/|/run/user/\d+/bus|@?/tmp/dbus-)",
        "D-Bus",
        "Start the job without desktop services (env -u DBUS_SESSION_BUS_ADDRESS).",
    ),
    (
        r"@?/tmp/\.X11-unix/",
        "the X server",
        "Start the job without a window (env -u DISPLAY; MPLBACKEND=Agg for matplotlib).",
    ),
    (
        r"/run/user/\d+/wayland-",
        "the Wayland display",
        "Start the job without a window (env -u WAYLAND_DISPLAY).",
    ),
    (r"/run/user/\d+/(pulse|pipewire)", "the sound server", "Start the job without sound."),
    (r"/(var/)?run/nscd/", "the name service cache", "Stop nscd, or start the job without it."),
    (r"/var/lib/sss/", "sssd", "Let the job close the connection (end the use of user names)."),
    (r"/run/nvidia-persistenced/", "nvidia-persistenced", "Restart the job without it."),
    (r"/(var/)?run/docker\.sock", "Docker", "Let the job close the connection."),
)


def socket_shared(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A port stays taken as long as anybody has the socket: socket activation, say."""
    with_port = {one.inode for one in facts.look.tcp}
    for pid, fd, holder in facts.look.shared_sockets:
        if fd.protocol.startswith("TCP") and fd.inode not in with_port:
            continue
        yield blocker(
            "socket-shared",
            f"fd {fd.fd} {fd.target} {fd.protocol}",
            f"The socket is held by {_whose(holder)} too, outside the tree: its port stays "
            "taken when the job goes, and no restore can bind it.",
            "Dump the tree that holds both, or start the job so that it makes its own sockets.",
            pid,
        )


def unix_peer_outside(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU cannot dump half of a connection; a datagram socket finds a named peer again."""
    for peer in facts.look.peers:
        if peer.holder is None and facts.look.in_flight:
            continue  # it may be on its way inside the tree; unreceived() tells
        server = _server(peer.name)
        thing = f"fd {peer.fd} {peer.kind} socket{' to ' + peer.name if peer.name else ''}"
        whose = f"{server[0]}, {_whose(peer.holder)}" if server else _whose(peer.holder)
        if peer.found_again:
            yield warning(
                "unix-server",
                thing,
                f"The process sends to this socket of {whose}; a restore fails if it is not there.",
                "See to it that the server runs where the job is restored.",
                peer.pid,
            )
            continue
        yield blocker(
            "unix-peer-outside",
            thing,
            f"The other end of this Unix socket belongs to {whose}, outside the tree.",
            server[1] if server else _PEER_REMEDY,
            peer.pid,
        )


_PEER_REMEDY: Final = (
    "Dump the tree that holds both ends (a common ancestor), or let the job close the connection."
)


def _server(name: str) -> tuple[str, str] | None:
    """Return who listens at a well-known name, and how to do without."""
    found = (one[1:] for one in _SERVERS if re.match(one[0], name))
    return next(found, None)


def unix_waiting(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The restored listener is another one: whoever waited at the old one waits in vain."""
    for one in facts.look.clients:
        yield warning(
            "unix-waiting",
            f"fd {one.fd} {one.name}",
            f"At this Unix socket {_whose(one.holder)}, outside the tree, waits to be accepted; "
            "its connection is lost with the dump.",
            "Wait until the job has accepted it, or let it connect again.",
            one.pid,
        )


def unreceived(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Nobody can look at descriptors on their way; CRIU takes them if it knows their kind."""
    for pid, fd in facts.look.in_flight:
        yield warning(
            "descriptors-in-flight",
            f"fd {fd}",
            "Descriptors were sent into this Unix socket and not received yet; what they are "
            "cannot be seen, and one that CRIU does not know fails the dump.",
            "Wait until the job has received them.",
            pid,
        )


def netlink_unread(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 dumps netlink sockets that are empty only."""
    for task in facts.look.tasks:
        for fd in task.descriptors:
            if fd.kind == "socket" and fd.inode in facts.look.unread:
                yield blocker(
                    "netlink-unread",
                    f"fd {fd.fd} {fd.target}",
                    "The process has not read all that the kernel sent it (netlink), and CRIU "
                    "does not carry that.",
                    "Wait until the job has read it, or start it without what watches devices.",
                    task.process.pid,
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
            stops = pipe.fd in _OUTPUT
            but = "; a job that lives without output may go all the same (--ignore pipe-outside)"
            yield (blocker if stops else warning)(
                "pipe-outside",
                thing,
                f"It writes into a pipe that only {who} reads, outside the tree; after a restore "
                "a write would fail and, as a rule, end it.",
                "Start the job with its output to a file, or dump the tree that holds the reader"
                f"{but if stops else ''}.",
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


RULES: Final[tuple[Rule, ...]] = (
    socket_shared,
    unix_peer_outside,
    unix_waiting,
    unreceived,
    netlink_unread,
    pipe_outside,
)
