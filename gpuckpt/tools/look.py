"""Everything /proc and sock_diag say of a tree that matters before a dump, gathered in one pass.

Reading only, nothing is judged here. Cost grows with the tree and what it has open; other
processes are searched only for the far ends of pipes and sockets, once, if there are any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.cgroups import Cgroups
from gpuckpt.tools.descriptors import Descriptor, descriptors
from gpuckpt.tools.handles import LostWatch, Pidfd, lost_watches, pidfds
from gpuckpt.tools.held import DeletedFile, DeviceNode, HeldLock, Terminal, held
from gpuckpt.tools.mappings import Mapped, mappings
from gpuckpt.tools.outside import OutsidePeer, OutsidePipe, outside
from gpuckpt.tools.places import OddFile, mounts, odd_files
from gpuckpt.tools.procfs import kibibytes, link, parse_status, read, stats, text
from gpuckpt.tools.sockets import InetSocket, tcp_sockets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuckpt.model import Process, Tree

NAMESPACES: Final = ("pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time")


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the tree, looked at from all sides.

    `namespaces` maps a kind to what identifies it; `tracers` are (thread, who traces it);
    `frozen` names the control group that holds it, `container` what it seems to run in;
    `environment` has names only; `memory` is what the process holds in RAM beside files, in bytes,
    `shared_memory` the shared part of it; not `readable`: what it has open may not be looked at.
    """

    process: Process
    namespaces: Mapping[str, str] = field(default_factory=dict)
    tracers: tuple[tuple[int, int], ...] = ()
    frozen: str = ""
    container: str = ""
    environment: frozenset[str] = frozenset()
    descriptors: tuple[Descriptor, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    memory: int = 0
    shared_memory: int = 0
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """A tree and what ties it to the world outside."""

    tasks: tuple[Task, ...] = ()
    own_namespaces: Mapping[str, str] = field(default_factory=dict)
    ancestors: tuple[str, ...] = ()
    mps_running: bool = False
    tcp: tuple[InetSocket, ...] = ()
    pipes: tuple[OutsidePipe, ...] = ()
    peers: tuple[OutsidePeer, ...] = ()
    locks: tuple[HeldLock, ...] = ()
    deleted: tuple[DeletedFile, ...] = ()
    terminals: tuple[Terminal, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    pidfds: tuple[Pidfd, ...] = ()
    watches: tuple[LostWatch, ...] = ()
    odd_files: tuple[OddFile, ...] = ()


def look(root: Path, tree: Tree, ancestors: tuple[int, ...]) -> Look:
    """Look at all processes of a tree under the /proc at `root`; `ancestors` are those above it."""
    names = {one.pid: one.comm for one in stats(root)}
    groups = Cgroups(root)
    tasks = tuple(_task(root, process, groups) for process in tree.processes)
    everything = [(task.process, task.descriptors, task.mapped) for task in tasks]
    inodes = {fd.inode for task in tasks for fd in task.descriptors if fd.kind == "socket"}
    pipes, peers = outside(root, [(one.pid, fds) for one, fds, _ in everything], names)
    kept = held(root, everything)
    # what lies in another mount namespace is refused as a whole, and cannot be judged from here
    own = _namespaces(f"{root}/self")
    here = [one for one in tasks if one.namespaces.get("mnt") == own.get("mnt")]
    seen = [(one.process.pid, one.descriptors) for one in here]
    known = mounts(f"{root}/self")
    return Look(
        tasks=tasks,
        own_namespaces=own,
        ancestors=tuple(names[pid] for pid in ancestors if pid in names),
        mps_running=any(name.startswith("nvidia-cuda-mps") for name in names.values()),
        tcp=tcp_sockets(f"{root}/{tree.root.pid}", inodes) if inodes else (),
        pipes=pipes,
        peers=peers,
        locks=kept.locks,
        deleted=kept.deleted,
        terminals=kept.terminals,
        nodes=kept.nodes,
        pidfds=pidfds(root, [(one.pid, fds) for one, fds, _ in everything], names),
        watches=lost_watches(root, seen, known),
        odd_files=odd_files(
            root, [(one.process.pid, one.descriptors, one.mapped) for one in here], known
        ),
    )


def _task(root: Path, process: Process, groups: Cgroups) -> Task:
    folder = f"{root}/{process.pid}"
    opened: tuple[Descriptor, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    names: frozenset[str] = frozenset()
    readable = True
    try:
        opened, mapped = descriptors(folder), mappings(folder)
        names = _environment(read(f"{folder}/environ") or b"")
    except PermissionError:
        readable = process.zombie  # the kernel lets nobody look at a zombie, and nothing is there
    except OSError:  # environ of a process without memory of its own
        names = frozenset()
    status = parse_status(read(f"{folder}/status") or b"")
    return Task(
        process=process,
        namespaces=_namespaces(folder),
        tracers=_tracers(folder, process),
        frozen=groups.frozen(process.pid),
        container=groups.container(process.pid),
        environment=names,
        descriptors=opened,
        mapped=mapped,
        memory=kibibytes(status, "RssAnon") + kibibytes(status, "RssShmem"),
        shared_memory=kibibytes(status, "RssShmem"),
        readable=readable,
    )


def _namespaces(folder: str) -> dict[str, str]:
    found = ((kind, link(f"{folder}/ns/{kind}")) for kind in NAMESPACES)
    return {kind: name for kind, name in found if name is not None}


def _tracers(folder: str, process: Process) -> tuple[tuple[int, int], ...]:
    """A tracer attaches to threads one by one: the first thread alone proves nothing."""
    found: list[tuple[int, int]] = []
    for tid in process.threads:
        status = read(f"{folder}/task/{tid}/status") or b""
        _, _, rest = status.partition(b"\nTracerPid:")
        tracer = int(rest.partition(b"\n")[0] or 0)
        if tracer:
            found.append((tid, tracer))
    return tuple(found)


def _environment(raw: bytes) -> frozenset[str]:
    """Return the names alone: values are secrets and none of our business."""
    return frozenset(text(entry.partition(b"=")[0]) for entry in raw.split(b"\0") if entry)
