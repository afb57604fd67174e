"""The ends of a tree's pipes and sockets that other processes hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.tools.descriptors import Descriptor, descriptors, fdinfo, targets
from gpuckpt.tools.procfs import below, link, numbers
from gpuckpt.tools.sockets import UnixSocket, unix_sockets
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_STANDARD: Final = frozenset({0, 1, 2})


class Holder(Value, frozen=True):
    """A process outside the tree."""

    pid: int
    comm: str


class OutsidePipe(Value, frozen=True):
    """A pipe of which the tree has one end and only others the other one.

    `writes`: the tree writes into it; `pid` and `fd` are one of those that have it.
    """

    pid: int
    fd: int
    inode: int
    writes: bool
    holder: Holder


class OutsidePeer(Value, frozen=True):
    """A Unix socket of the tree whose peer is outside; `name` is the peer's, "" if it has none."""

    pid: int
    fd: int
    inode: int
    kind: str
    name: str
    holder: Holder | None

    @property
    def found_again(self) -> bool:
        """Whether CRIU can connect it anew by the peer's name: datagrams alone need no partner."""
        return self.kind == "dgram" and self.name.startswith(("/", "@"))


class WaitingClient(Value, frozen=True):
    """A client outside the tree that waits for a Unix socket of the tree to accept it."""

    pid: int
    fd: int
    name: str
    holder: Holder | None


class Ends(Value, frozen=True):
    """The far ends of a tree's connections: `hosts` names who has a local TCP peer, by its inode.

    `shared` are (pid, fd, holder) of Internet sockets that somebody outside holds as well,
    `in_flight` are (pid, fd) of Unix sockets in which descriptors are on their way, `bound` the
    names that the tree's own Unix sockets have, each with a process that has it.
    """

    pipes: tuple[OutsidePipe, ...] = ()
    peers: tuple[OutsidePeer, ...] = ()
    clients: tuple[WaitingClient, ...] = ()
    in_flight: tuple[tuple[int, int], ...] = ()
    shared: tuple[tuple[int, Descriptor, Holder], ...] = ()
    hosts: Mapping[int, Holder] = field(default_factory=dict)
    bound: tuple[tuple[int, str], ...] = ()


def outside(
    root: Path,
    tree: Sequence[tuple[int, Sequence[Descriptor]]],
    names: Mapping[int, str],
    tcp_peers: Iterable[int] = (),
) -> Ends:
    """Find the far ends. `tree` has the descriptors of each pid, `names` every process's name."""
    halves = _half_pipes(tree)
    own = _own_sockets(tree)
    known = _known(own)
    strangers = _strangers(own, known)
    waiting = _waiting(own, known)
    wanted = {f"pipe:[{one.inode}]" for _, one in halves}
    wanted |= {f"socket:[{unix.peer}]" for _, _, unix, _ in strangers}
    wanted |= {f"socket:[{client}]" for *_, client in waiting}
    wanted |= {f"socket:[{peer}]" for peer in tcp_peers}
    inet = [(pid, fd) for pid, fd in own.values() if fd.protocol.startswith(("TCP", "UDP"))]
    wanted |= {fd.target for _, fd in inet}
    seen = {fd.target for _, opened in tree for fd in opened}
    found, late = _holders(root, wanted, seen, {pid for pid, _ in tree}) if wanted else ({}, set())
    late |= _gone(root, strangers, found) if strangers else set()
    pipes = (_outside_pipe(root, pid, fd, found, names) for pid, fd in halves)
    peers = tuple(
        OutsidePeer(
            pid, fd.fd, unix.inode, unix.kind, name, _holder(found, f"socket:[{unix.peer}]", names)
        )
        for pid, fd, unix, name in strangers
        if f"socket:[{unix.peer}]" not in late
    )
    hosts = {peer: _holder(found, f"socket:[{peer}]", names) for peer in tcp_peers}
    return Ends(
        pipes=tuple(one for one in pipes if one is not None),
        peers=peers,
        clients=tuple(
            WaitingClient(pid, fd.fd, name, _holder(found, f"socket:[{client}]", names))
            for pid, fd, name, client in waiting
            if f"socket:[{client}]" not in late
        ),
        in_flight=tuple(_in_flight(root, own, known)),
        shared=tuple(
            (pid, fd, holder)
            for pid, fd in inet
            if (holder := _holder(found, fd.target, names)) is not None
        ),
        hosts={peer: holder for peer, holder in hosts.items() if holder is not None},
        bound=tuple(
            (pid, known[inode].name.rstrip("\0"))  # of an abstract name the zeros are a part
            for inode, (pid, _) in own.items()
            if inode in known and known[inode].name
        ),
    )


def _half_pipes(tree: Iterable[tuple[int, Sequence[Descriptor]]]) -> list[tuple[int, Descriptor]]:
    """Return a descriptor of each pipe that the tree can only read or only write.

    One that is somebody's stdin, stdout or stderr if there is such, otherwise the first.
    """
    first: dict[int, tuple[int, Descriptor]] = {}
    reads: set[int] = set()
    writes: set[int] = set()
    for pid, opened in tree:
        for fd in opened:
            if fd.kind == "pipe":
                known = first.setdefault(fd.inode, (pid, fd))
                if fd.fd in _STANDARD and known[1].fd not in _STANDARD:
                    first[fd.inode] = (pid, fd)
                reads |= {fd.inode} if fd.reads else set()
                writes |= {fd.inode} if fd.writes else set()
    return [one for inode, one in first.items() if not (inode in reads and inode in writes)]


def _own_sockets(
    tree: Iterable[tuple[int, Sequence[Descriptor]]],
) -> dict[int, tuple[int, Descriptor]]:
    """Return the sockets of the tree by inode, each with a process that has it."""
    own: dict[int, tuple[int, Descriptor]] = {}
    for pid, opened in tree:
        for fd in opened:
            if fd.kind == "socket":
                own.setdefault(fd.inode, (pid, fd))
    return own


def _known(own: Mapping[int, object]) -> dict[int, UnixSocket]:
    if not own:
        return {}
    try:
        return unix_sockets()
    except OSError:  # no unix_diag: CRIU cannot work without it either and says so itself
        return {}


def _strangers(
    own: Mapping[int, tuple[int, Descriptor]], known: Mapping[int, UnixSocket]
) -> list[tuple[int, Descriptor, UnixSocket, str]]:
    """Return each socket whose peer the tree does not hold, with the peer's name."""
    found: list[tuple[int, Descriptor, UnixSocket, str]] = []
    for inode, (pid, fd) in own.items():
        unix = known.get(inode)
        if unix is not None and unix.peer and unix.peer not in own:
            peer = known.get(unix.peer)
            found.append((pid, fd, unix, peer.name if peer else ""))
    return found


def _waiting(
    own: Mapping[int, tuple[int, Descriptor]], known: Mapping[int, UnixSocket]
) -> list[tuple[int, Descriptor, str, int]]:
    """Return each of the tree's listeners, by its name, with a stranger that waits there."""
    return [
        (pid, fd, known[inode].name, client)
        for inode, (pid, fd) in own.items()
        if inode in known
        for client in known[inode].waiting
        if client not in own
    ]


def _in_flight(
    root: Path, own: Mapping[int, tuple[int, Descriptor]], known: Mapping[int, UnixSocket]
) -> Iterator[tuple[int, int]]:
    """Ask each Unix socket for descriptors that were sent and not received (Linux 5.9)."""
    for inode, (pid, fd) in own.items():
        if inode in known:
            told = dict(fdinfo(f"{root}/{pid}", fd.fd))
            if told.get("scm_fds", "0") != "0":
                yield pid, fd.fd


def _gone(
    root: Path,
    strangers: Iterable[tuple[int, Descriptor, UnixSocket, str]],
    found: Mapping[str, list[int]],
) -> set[str]:
    """Return the peers that were only on their way out: a busy server's connections are short."""
    lost = [one for one in strangers if f"socket:[{one[2].peer}]" not in found]
    now = _known({unix.inode: None for _, _, unix, _ in lost})
    gone: set[str] = set()
    for pid, fd, unix, _ in lost:
        still = unix.inode in now and now[unix.inode].peer == unix.peer
        if not still or link(f"{root}/{pid}/fd/{fd.fd}") != fd.target:
            gone.add(f"socket:[{unix.peer}]")
    return gone


def _holders(
    root: Path, wanted: set[str], seen: set[str], inside: set[int]
) -> tuple[dict[str, list[int]], set[str]]:
    """Return who outside the tree has which of the wanted pipes and sockets open.

    Also those that the tree itself has opened in the meantime, or processes that it has started;
    `seen` is what it had.
    """
    found: dict[str, list[int]] = {}
    late: set[str] = set()
    known = wanted <= seen  # then the tree has nothing new to be found
    for pid in numbers(root):
        if known and pid in inside:
            continue
        try:
            opened = targets(f"{root}/{pid}")
        except OSError:
            continue
        theirs = {target for _, target in opened} & wanted
        if pid in inside:
            late |= theirs - seen
            continue
        if theirs and below(root, pid, inside):
            late |= theirs
            continue
        for target in theirs:
            found.setdefault(target, []).append(pid)
    return found, late


def _outside_pipe(
    root: Path,
    pid: int,
    fd: Descriptor,
    found: Mapping[str, list[int]],
    names: Mapping[int, str],
) -> OutsidePipe | None:
    """Return the pipe if somebody outside has its other end; a widowed pipe does no harm."""
    for holder in found.get(fd.target, ()):
        try:
            theirs = [one for one in descriptors(f"{root}/{holder}") if one.target == fd.target]
        except OSError:
            continue
        if any((one.reads if fd.writes else one.writes) for one in theirs):
            return OutsidePipe(
                pid, fd.fd, fd.inode, fd.writes, Holder(holder, names.get(holder, "?"))
            )
    return None


def _holder(found: Mapping[str, list[int]], target: str, names: Mapping[int, str]) -> Holder | None:
    pid = next(iter(found.get(target, ())), None)
    return None if pid is None else Holder(pid, names.get(pid, "?"))
