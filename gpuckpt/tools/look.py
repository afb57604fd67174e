"""Everything /proc and sock_diag say of a tree that matters before a dump, gathered in one pass.

Reading only, nothing is judged here. Cost grows with the tree and what it has open; other
processes are searched only for the far ends of pipes and sockets, once, if there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.tools import threads
from gpuckpt.tools.above import Above, above
from gpuckpt.tools.borrowed import elsewhere
from gpuckpt.tools.cgroups import Cgroups
from gpuckpt.tools.cooperation import LINK
from gpuckpt.tools.descriptors import Descriptor, descriptors
from gpuckpt.tools.environment import Environment, environment
from gpuckpt.tools.forks import NODES, inherited
from gpuckpt.tools.handles import LostWatch, Pidfd, lost_watches, pidfds
from gpuckpt.tools.held import DeletedFile, DeviceNode, Terminal, held
from gpuckpt.tools.locks import HeldLock, LockRival, rivals
from gpuckpt.tools.mappings import Mapped, mapped_by, mappings
from gpuckpt.tools.outside import Holder, OutsidePeer, OutsidePipe, WaitingClient, outside
from gpuckpt.tools.pidspace import Space, space_of
from gpuckpt.tools.places import OddFile, mounts, odd_files
from gpuckpt.tools.procfs import Stat, kibibytes, link, parse_status, read, stats
from gpuckpt.tools.sockets import InetSocket, unread_netlink
from gpuckpt.tools.surroundings import label
from gpuckpt.tools.talk import talk
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from gpuckpt.model import DeviceUse, Process, Tree
    from gpuckpt.tools.threads import Thread

_IPC: Final = "/dev/shm/cuda.shm."  # noqa: S108 - what CUDA's driver makes for memory it shares
NAMESPACES: Final = ("pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time")
# what a process's children will get, where that can differ from its own
_CHILDREN: Final = "time_for_children"


class Task(Value, frozen=True):
    """One process of the tree, looked at from all sides.

    `namespaces` maps a kind to what identifies it; `tracers` are (thread, who traces it);
    `frozen` names the control group that holds it, `container` what it seems to run in;
    `halted`: any of its threads is stopped, by a signal or a tracer; `stuck` are threads that have
    not run for a while and cannot be interrupted, with the kernel's function they wait in; `apart`
    those that do not share all with the first one; `seccomp` is the strictest mode of any; `label`
    what the security module calls the process.
    `environment` has names only, `settings` the values of a few known ones, both as they were when
    the program started; `memory` is what the process holds in RAM beside files, in bytes,
    `shared_memory` the shared part of it, `huge` what it has in huge pages besides; not
    `readable`: what it has open may not be looked at.
    """

    process: Process
    namespaces: Mapping[str, str] = field(default_factory=dict)
    tracers: tuple[tuple[int, int], ...] = ()
    frozen: str = ""
    container: str = ""
    halted: bool = False
    stuck: tuple[tuple[int, str], ...] = ()
    apart: tuple[tuple[int, str], ...] = ()
    thread_names: frozenset[str] = frozenset()
    seccomp: int = 0
    label: str = ""
    environment: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[Descriptor, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    memory: int = 0
    shared_memory: int = 0
    huge: int = 0
    readable: bool = True

    @property
    def cooperates(self) -> bool:
        """Whether it can be brought to rest at a step (see gpuckpt/cooperate.py)."""
        return any(one.target == LINK and one.deleted for one in self.descriptors)


class Look(Value, frozen=True):
    """A tree and what ties it to the world outside.

    `above` are its ancestors, nearest first; `tracers` the names of those who trace any of it.
    `bound` has (pid, name) of its Unix sockets.
    `elsewhere` are Internet sockets of another network namespace than their process.
    `strays` are processes outside the tree in sessions or groups that it leads.
    `inherited` is what of GPUs processes of the tree have in common, as after a fork.
    `shared_by` has all processes of the host that map the files of CUDA IPC which the tree maps.
    `space` is the pid namespace of ours that it lives in, `space_namespaces` tell what is its own.
    """

    tasks: tuple[Task, ...] = ()
    own_namespaces: Mapping[str, str] = field(default_factory=dict)
    space: Space | None = None
    space_namespaces: Mapping[str, str] = field(default_factory=dict)
    own_seccomp: int = 0
    above: tuple[Above, ...] = ()
    tracers: Mapping[int, str] = field(default_factory=dict)
    mps_running: bool = False
    tcp: tuple[InetSocket, ...] = ()
    pipes: tuple[OutsidePipe, ...] = ()
    peers: tuple[OutsidePeer, ...] = ()
    clients: tuple[WaitingClient, ...] = ()
    in_flight: tuple[tuple[int, int], ...] = ()
    bound: tuple[tuple[int, str], ...] = ()
    shared_sockets: tuple[tuple[int, Descriptor, Holder], ...] = ()
    hosts: Mapping[int, Holder] = field(default_factory=dict)
    elsewhere: tuple[tuple[int, Descriptor], ...] = ()
    unread: frozenset[int] = frozenset()
    locks: tuple[HeldLock, ...] = ()
    rivals: tuple[LockRival, ...] = ()
    deleted: tuple[DeletedFile, ...] = ()
    terminals: tuple[Terminal, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    shared_by: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pidfds: tuple[Pidfd, ...] = ()
    watches: tuple[LostWatch, ...] = ()
    odd_files: tuple[OddFile, ...] = ()
    huge_left: int | None = None
    strays: tuple[Stat, ...] = ()
    inherited: frozenset[DeviceUse] = frozenset()


def look(root: Path, tree: Tree, ancestors: tuple[int, ...]) -> Look:
    """Look at all processes of a tree under the /proc at `root`; `ancestors` are those above it."""
    everybody = tuple(stats(root))
    names = {one.pid: one.comm for one in everybody}
    groups = Cgroups(root)
    crowd = {one.pid: _threads(root, one) for one in tree.processes}
    sleepers = ((pid, one) for pid, found in crowd.items() for one in found if one.state == "D")
    stuck = threads.stuck(root, sleepers)
    tasks = tuple(
        _task(root, one, groups, crowd[one.pid], stuck.get(one.pid, ())) for one in tree.processes
    )
    everything = [(task.process, task.descriptors, task.mapped) for task in tasks]
    inodes = {fd.inode for task in tasks for fd in task.descriptors if fd.kind == "socket"}
    net = f"{root}/{tree.root.pid}"
    tcp = talk(root, tree.pids, inodes)
    peers = {one.peer for one in tcp if one.connected} - inodes - {0}
    ends = outside(root, [(one.pid, fds) for one, fds, _ in everything], names, peers)
    own, space = _namespaces(f"{root}/self"), space_of(root, tree.root.pid)
    within = _within(root, space) if space is not None else {}
    known = mounts(f"{root}/{space.init.pid if space is not None else 'self'}")
    kept = held(root, everything, names, known, space)
    # what lies in another mount namespace is refused as a whole, and cannot be judged from here
    mnt = within.get("mnt", own.get("mnt"))
    here = [one for one in tasks if one.namespaces.get("mnt") == mnt]
    seen = [(one.process.pid, one.descriptors) for one in here]
    ipc = {one.target for task in tasks for one in task.mapped if one.target.startswith(_IPC)}
    return Look(
        tasks=tasks,
        own_namespaces=own,
        space=space,
        space_namespaces=within,
        own_seccomp=int(parse_status(read(f"{root}/self/status") or b"").get("Seccomp", "0")),
        above=above(root, ancestors, names),
        tracers={pid: names.get(pid, "?") for task in tasks for _, pid in task.tracers},
        mps_running=any(name.startswith("nvidia-cuda-mps") for name in names.values()),
        tcp=tcp,
        pipes=ends.pipes,
        peers=ends.peers,
        clients=ends.clients,
        in_flight=ends.in_flight,
        bound=ends.bound,
        shared_sockets=ends.shared,
        hosts=ends.hosts,
        elsewhere=_elsewhere(tasks, own, {one.inode for one in tcp}),
        unread=frozenset(unread_netlink(net, inodes) if inodes else ()),
        locks=kept.locks,
        rivals=rivals(root, kept.locks, set(tree.pids), names),
        deleted=kept.deleted,
        terminals=kept.terminals,
        nodes=kept.nodes,
        shared_by=mapped_by(root, ipc) if ipc else {},
        pidfds=pidfds(root, [(one.pid, fds) for one, fds, _ in everything], names),
        huge_left=_huge_left(root),
        watches=lost_watches(root, seen, known),
        odd_files=odd_files(
            root, [(one.process.pid, one.descriptors, one.mapped) for one in here], known
        ),
        strays=_strays(everybody, tree),
        inherited=inherited(root, _on_gpus(tasks)),
    )


def _on_gpus(tasks: Iterable[Task]) -> tuple[int, ...]:
    """Return those that have any GPU device: to list all descriptors once more is dear."""
    return tuple(one.process.pid for one in tasks if any(map(NODES.fullmatch, _names(one))))


def _names(one: Task) -> Iterator[str]:
    yield from (fd.target for fd in one.descriptors)
    yield from (area.target for area in one.mapped)


def _threads(root: Path, process: Process) -> tuple[Thread, ...]:
    found = (threads.thread(f"{root}/{process.pid}", tid) for tid in process.threads)
    return tuple(one for one in found if one is not None)


def _strays(everybody: Iterable[Stat], tree: Tree) -> tuple[Stat, ...]:
    """Return who is in a session or group of the tree and not below it, not even as of now."""
    inside = set(tree.pids)
    known = {one.pid: one for one in everybody}

    def below(one: Stat | None) -> bool:
        for _ in known:  # a snapshot of many moments may hold a circle
            if one is None or one.pid in inside:
                break
            one = known.get(one.ppid)
        return one is not None and one.pid in inside

    return tuple(one for one in known.values() if {one.sid, one.pgid} & inside and not below(one))


def _task(
    root: Path,
    process: Process,
    groups: Cgroups,
    crowd: tuple[Thread, ...],
    stuck: Iterable[Thread],
) -> Task:
    folder = f"{root}/{process.pid}"
    opened: tuple[Descriptor, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    around = Environment()
    readable = True
    try:
        opened, mapped = descriptors(folder), mappings(folder)
        around = environment(read(f"{folder}/environ") or b"")
    except PermissionError:
        readable = process.zombie  # the kernel lets nobody look at a zombie, and nothing is there
    except OSError:  # environ of a process without memory of its own
        around = Environment()
    status = parse_status(read(f"{folder}/status") or b"")
    return Task(
        process=process,
        namespaces=_namespaces(folder),
        # a tracer attaches to threads one by one
        tracers=tuple((one.tid, one.tracer) for one in crowd if one.tracer),
        frozen=groups.frozen(process.pid),
        container=groups.container(process.pid),
        halted=any(one.state in {"T", "t"} for one in crowd),
        stuck=tuple((one.tid, threads.waits_in(folder, one.tid)) for one in stuck),
        apart=_apart(folder, process, readable=readable),
        thread_names=frozenset(one.name for one in crowd),
        seccomp=max((one.seccomp for one in crowd), default=0),
        label=label(folder),
        environment=around.names,
        settings=around.settings,
        descriptors=opened,
        mapped=mapped,
        memory=kibibytes(status, "RssAnon") + kibibytes(status, "RssShmem"),
        shared_memory=kibibytes(status, "RssShmem"),
        huge=kibibytes(status, "HugetlbPages"),
        readable=readable,
    )


def _apart(folder: str, process: Process, *, readable: bool) -> tuple[tuple[int, str], ...]:
    if process.ended or not readable:
        return ()  # a first thread that has ended has let go of everything
    return threads.apart(folder, process.pid, process.threads)


def _elsewhere(
    tasks: Iterable[Task], own: Mapping[str, str], known: set[int]
) -> tuple[tuple[int, Descriptor], ...]:
    """Return sockets that came from another network namespace; whole processes are told apart."""
    here = [one for one in tasks if one.namespaces.get("net") == own.get("net")]
    return elsewhere([(one.process.pid, one.descriptors) for one in here], known)


def _huge_left(root: Path) -> int | None:
    """Return how many huge pages a program could still map, None if the kernel does not say."""
    told = parse_status(read(root / "meminfo") or b"")
    free, kept = told.get("HugePages_Free", ""), told.get("HugePages_Rsvd", "")
    return int(free) - int(kept) if free.isdigit() and kept.isdigit() else None


def _within(root: Path, space: Space) -> dict[str, str]:
    """Return the namespaces that a job has for itself in a space of ours."""
    found = _namespaces(f"{root}/{space.init.pid}")
    return {kind: found[kind] for kind in ("pid", "mnt") if kind in found}


def _namespaces(folder: str) -> dict[str, str]:
    found = ((kind, link(f"{folder}/ns/{kind}")) for kind in (*NAMESPACES, _CHILDREN))
    return {kind: name for kind, name in found if name is not None}
