"""The ends of a tree's pipes and Unix sockets that other processes hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import Descriptor, descriptors, targets
from gpuckpt.tools.procfs import numbers
from gpuckpt.tools.sockets import UnixSocket, unix_sockets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_STANDARD: Final = frozenset({0, 1, 2})


@dataclass(frozen=True, slots=True)
class Holder:
    """A process outside the tree."""

    pid: int
    comm: str


@dataclass(frozen=True, slots=True)
class OutsidePipe:
    """A pipe of which the tree has one end and only others the other one.

    `writes`: the tree writes into it; `pid` and `fd` are one of those that have it.
    """

    pid: int
    fd: int
    inode: int
    writes: bool
    holder: Holder


@dataclass(frozen=True, slots=True)
class OutsidePeer:
    """A Unix socket of the tree whose peer is outside; `name` is the peer's, "" if it has none."""

    pid: int
    fd: int
    inode: int
    kind: str
    name: str
    holder: Holder | None


def outside(
    root: Path, tree: Sequence[tuple[int, Sequence[Descriptor]]], names: Mapping[int, str]
) -> tuple[tuple[OutsidePipe, ...], tuple[OutsidePeer, ...]]:
    """Find the far ends. `tree` has the descriptors of each pid, `names` every process's name."""
    halves = _half_pipes(tree)
    strangers = _strangers(tree)
    wanted = {f"pipe:[{one.inode}]" for _, one in halves}
    wanted |= {f"socket:[{unix.peer}]" for _, _, unix, _ in strangers}
    found = _holders(root, wanted, {pid for pid, _ in tree}) if wanted else {}
    pipes = (_outside_pipe(root, pid, fd, found, names) for pid, fd in halves)
    peers = tuple(
        OutsidePeer(
            pid, fd.fd, unix.inode, unix.kind, name, _holder(found, f"socket:[{unix.peer}]", names)
        )
        for pid, fd, unix, name in strangers
    )
    return tuple(one for one in pipes if one is not None), peers


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


def _strangers(
    tree: Iterable[tuple[int, Sequence[Descriptor]]],
) -> list[tuple[int, Descriptor, UnixSocket, str]]:
    """Return each socket whose peer the tree does not hold, with the peer's name."""
    own: dict[int, tuple[int, Descriptor]] = {}
    for pid, opened in tree:
        for fd in opened:
            if fd.kind == "socket":
                own.setdefault(fd.inode, (pid, fd))
    if not own:
        return []
    try:
        known = unix_sockets()
    except OSError:  # no unix_diag: CRIU cannot work without it either and says so itself
        return []
    found: list[tuple[int, Descriptor, UnixSocket, str]] = []
    for inode, (pid, fd) in own.items():
        unix = known.get(inode)
        if unix is not None and unix.peer and unix.peer not in own:
            peer = known.get(unix.peer)
            found.append((pid, fd, unix, peer.name if peer else ""))
    return found


def _holders(root: Path, wanted: set[str], inside: set[int]) -> dict[str, list[int]]:
    """Return who outside the tree has which of the wanted pipes and sockets open."""
    found: dict[str, list[int]] = {}
    for pid in numbers(root):
        if pid in inside:
            continue
        try:
            opened = targets(f"{root}/{pid}")
        except OSError:
            continue
        for target in {target for _, target in opened} & wanted:
            found.setdefault(target, []).append(pid)
    return found


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
