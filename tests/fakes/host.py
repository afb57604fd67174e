"""A host that exists only in memory: processes, a driver, a CRIU, and faults by call number.

The state of every process is kept as the kernel and the driver would keep it, so a test can ask
afterwards whether everything is back as it was. Images are written for real.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from msgspec.structs import replace

from gpuckpt.errors import CriuMissing, CudaCallFailed, NoSuchProcess, Stopped
from gpuckpt.flow.gpu.clock import STAMP
from gpuckpt.flow.work.toolbox import Toolbox
from gpuckpt.model import (
    CarriedFile,
    CudaBackend,
    CudaOutcome,
    CudaState,
    DeviceUse,
    Gpu,
    GpuUse,
    HostFacts,
    NvidiaFacts,
    Owner,
    Process,
    ProcessRef,
    Tree,
    Version,
)
from gpuckpt.tools.cooperation import LINK, Rank
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.destination import Place
from gpuckpt.tools.digest import Digest
from gpuckpt.tools.files import HostFile, Remap
from gpuckpt.tools.look import Look, Task
from gpuckpt.tools.net import PortState
from gpuckpt.tools.pidspace import Space
from gpuckpt.tools.putting import Identity
from gpuckpt.tools.signs import Signs
from gpuckpt.tools.sockets import InetSocket
from gpuckpt.tools.software import Survey
from gpuckpt.tools.starting import Account, Start
from gpuckpt.tools.surroundings import Surroundings
from gpuckpt.tools.taskmemory import Mapping
from gpuckpt.tools.usedfiles import Listing, UsedFile
from tests.fakes import criuimages
from tests.fakes.stores import FakeStores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from collections.abc import Mapping as Table
    from pathlib import Path

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.model import Carriage
    from gpuckpt.tools.addresses import Ends
    from gpuckpt.tools.criurun import DumpRun, RestoreRun
    from gpuckpt.tools.diag import Connection
    from gpuckpt.tools.distributions import Installed
    from gpuckpt.tools.locks import FileLock
    from gpuckpt.tools.pidspace import NewSpace
    from gpuckpt.tools.tracked import Walk
    from gpuckpt.tools.unixnames import SocketName
    from gpuckpt.tools.usedfiles import Opened

GIB = 1 << 30
ROOT_PID = 4_000_000  # higher than the pid of any test run
COPIES, COPY = 0x7000_0000, 600 << 10  # where the driver's copies are, and how long each is
COLD_PID = ROOT_PID + 9000  # of a job that is started
WORK = b"what the job wrote"
INIT_PID = ROOT_PID + 5000  # of a pid namespace, and those of the job in it follow
# the job's processes talk to each other
CONNECTED = (
    InetSocket(71, "127.0.0.1", 6000, "127.0.0.1", 6001, 1, peer=72),
    InetSocket(72, "127.0.0.1", 6001, "127.0.0.1", 6000, 1, peer=71),
)


def process(pid: int, ppid: int = 1, **changes: Any) -> Process:
    """Make a plain process."""
    made = Process(
        ref=ProcessRef(pid, 1000 + pid),
        ppid=ppid,
        pgid=pid,
        sid=pid,
        state="S",
        threads=(pid,),
        comm=f"job{pid}",
        argv=("python", f"job{pid}.py"),
        exe="/usr/bin/python3",
        cwd="/",
        uid=0,
        gid=0,
        rss=8 << 20,
    )
    return replace(made, **changes)


def moved(one: Process, shift: int, ppid: int) -> Process:
    """Return a process with other numbers."""
    pid = one.pid + shift
    ref = ProcessRef(pid, one.ref.start_time)
    return replace(one, ref=ref, ppid=ppid, threads=tuple(tid + shift for tid in one.threads))


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the n-th call, before or after its effect.

    `kind` is "error", "signal", or something that is done to the host.
    """

    number: int
    kind: str | Callable[[FakeHost], None]
    when: str


@dataclass
class FakeRank:
    """A process that cooperates; `late` never comes to its target, `fails` in `down`."""

    step: int = 5
    arrived: int = 0
    quiet: int = 0
    confirmed: int = 0
    late: bool = False
    fails: str = ""
    stuck: bool = False
    stops: int = 0


_COUNTING = threading.Lock()  # not of a host: those are pickled


@dataclass
class FakeHost:
    """The whole host; `toolbox` gives its tools."""

    processes: dict[int, Process] = field(default_factory=dict)
    cuda: dict[int, CudaState] = field(default_factory=dict)
    used: tuple[UsedFile, ...] = (UsedFile("/data/in", 1, 7, ("/data/in",), size=10, bytes=10),)
    included: dict[str, tuple[UsedFile, ...]] = field(default_factory=dict)
    gpu_free: int = 100 * GIB
    memory_free: int = 2 * GIB  # what a dump keeps in memory beyond that is real
    gpus: tuple[str, ...] = ("GPU-0",)
    on_gpu: dict[int, str] = field(default_factory=dict)
    gpu_maps: list[dict[str, str]] = field(default_factory=list)
    gpu_bytes: dict[int, int] = field(default_factory=dict)
    interrupts: Interrupts | None = None
    fault: Fault | None = None
    calls: list[str] = field(default_factory=list)
    pages: bytes = b"memory" * 50_000
    spoiled: dict[int, int] = field(default_factory=dict)  # where a byte of a process changes
    forgetful: set[int] = field(default_factory=set)  # whose GPU memory is another after a restore
    wandering: bool = False  # copies of GPU memory come to another place each time
    armed: dict[int, CudaState] = field(default_factory=dict)
    restored: dict[int, Process] = field(default_factory=dict)
    probe_answer: str = ""
    hook_answer: str = ""
    started: list[Start] = field(default_factory=list)  # what was to become a job
    unstartable: str = ""
    ends_with: int | None = None  # a started job, at once
    told: dict[str, dict[str, str]] = field(default_factory=dict)  # shell lines, environments
    adopting: bool = False
    leftover: int = 0
    fired: list[tuple[int, int]] = field(default_factory=list)
    inherited: frozenset[DeviceUse] = frozenset()
    busy: set[int] = field(default_factory=set)
    busy_rounds: int = 1 << 30
    driver: str = "580.159.04"
    names: dict[int, str] = field(default_factory=lambda: {0: "root", 1000: "trainer"})
    stuck: set[int] = field(default_factory=set)  # whose restore the driver refuses
    ended_live: list[int] = field(default_factory=list)
    bindings: dict[int, frozenset[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    strangers: dict[int, int] = field(default_factory=dict)
    boot_id: str = "boot"
    around_of: dict[int, Surroundings] = field(default_factory=dict)
    ran: dict[int, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    missing: set[str] = field(default_factory=set)
    ports: dict[int, list[PortState]] = field(default_factory=dict)
    port_holders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    unix_users: dict[SocketName, tuple[int, ...]] = field(default_factory=dict)
    packages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    survey: Survey = field(default_factory=Survey)
    trees: dict[str, Walk] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    criu_found: dict[int, str] = field(default_factory=dict)
    making: bool = False
    half_made: set[int] = field(default_factory=set)
    users: dict[str, int] = field(default_factory=dict)
    remaps: list[Remap] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    huge_pages: str = "madvise"
    huge_pages_fixed: bool = False
    connected: bool = True
    filters: set[str] = field(default_factory=set)
    no_filters: bool = False
    remains: list[Connection] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    file_locks: dict[str, tuple[FileLock, ...]] = field(default_factory=dict)
    stubborn: bool = False  # the kernel forgets no closed connection
    inside: dict[int, int] = field(default_factory=dict)
    stores: FakeStores = field(default_factory=FakeStores)
    ranks: dict[int, FakeRank] = field(default_factory=dict)

    @classmethod
    def with_job(cls, cuda: int = 2, plain: int = 1) -> FakeHost:
        """Make a host with one job: a root, `cuda` CUDA processes and `plain` others below it."""
        host = cls()
        me = os.getpid()
        host.processes[me] = process(me)
        pids = range(ROOT_PID, ROOT_PID + 1 + cuda + plain)
        for pid in pids:
            host.processes[pid] = process(pid, 1 if pid == ROOT_PID else ROOT_PID)
        for pid in pids[1 : 1 + cuda]:
            host.cuda[pid] = CudaState.RUNNING
            host.gpu_bytes[pid] = GIB
        return host

    def go_inside(self) -> None:
        """Give the job a pid namespace, in which its pids are 100 and following."""
        self.processes[INIT_PID] = process(INIT_PID, comm="gpuckpt-init")
        self.processes[ROOT_PID] = replace(self.processes[ROOT_PID], ppid=INIT_PID)
        for pid in [pid for pid in self.processes if ROOT_PID <= pid < INIT_PID]:
            number = 100 + pid - ROOT_PID
            self.inside |= {pid: number, pid + 1000: number + 1000}

    def move_in(self) -> None:
        """Make the running process the gpuckpt of this host; the one before is dead."""
        for pid in [pid for pid, one in self.processes.items() if one.comm == f"job{pid}"]:
            if pid < ROOT_PID:
                del self.processes[pid]
        me = os.getpid()
        # not the start time of any other gpuckpt: pids are given again
        self.processes[me] = process(me)

    def after_the_death_of_gpuckpt(self, *, helpers: bool, criu: bool = True) -> None:
        """Do what CRIU, the kernel and the driver's helpers do when gpuckpt has been killed.

        A CRIU that finds nobody to ask turns back, unless it was killed too: then its tasks stay.
        """
        self.adopting = False
        for pid, one in list(self.processes.items()):
            if one.ppid not in self.processes:
                self.processes[pid] = replace(one, ppid=1)
            if one.state == "t":
                self.processes[pid] = replace(one, state=self.criu_found.get(pid, "S"))
        if self.making:
            self._lose_the_unfinished(criu=criu)
        self.making = False
        self.let_go()
        armed, self.armed, self.opened = self.armed, {}, set()
        for pid, first in armed.items():
            if helpers and first is CudaState.RUNNING and pid in self.cuda:
                self.cuda[pid] = first
                self.processes[pid] = replace(self.processes[pid], state="S")

    def _lose_the_unfinished(self, *, criu: bool) -> None:
        # a namespace ends with gpuckpt until CRIU has
        gone = (INIT_PID, *self.inside) if self.inside else tuple(self.restored)
        if not (criu or self.inside):
            self.half_made |= set(self.restored)
            return
        for pid in gone:
            self.processes.pop(pid, None)
            self.cuda.pop(pid, None)

    def let_go(self) -> None:
        """As processes do that wait for a gpuckpt which is gone, and see nothing decided."""
        for one in self.ranks.values():
            if one.confirmed != one.arrived:
                one.arrived = 0

    def toolbox(self, state_dir: Path) -> Toolbox:
        """Return tools that count every call and fail where the fault says so."""
        tools = {
            "proc": _Proc(self),
            "host": _Host(self),
            "nvidia": _Nvidia(self),
            "cuda": _Cuda(self),
            "criu": _Criu(self),
            "files": _Files(self),
            "carried": _Carried(self),
            "net": _Net(self),
            "cpus": _Cpus(self),
            "memory": _Memory(self),
            "ranks": _Ranks(self),
            "shell": _Shell(self),
            "spaces": _Spaces(self),
            "software": _Software(self),
            "starter": _Starter(self),
        }
        self.stores.around = self.around
        counted: dict[str, Any] = {name: _Counted(self, name, tool) for name, tool in tools.items()}
        return Toolbox(**counted, stores=self.stores, state_dir=state_dir, run_dir=state_dir)

    def around(self, name: str, effect: Callable[[], Any]) -> Any:
        """Run one call's effect, with the fault before or after it if this is its number."""
        with _COUNTING:
            self.calls.append(name)
            number = len(self.calls)
        fault = self.fault
        hit = fault is not None and fault.number == number
        if hit and fault.when == "before":
            self._strike(fault)
        result = effect()
        if hit and fault.when == "after":
            self._strike(fault)
        return result

    def _strike(self, fault: Fault) -> None:
        if not isinstance(fault.kind, str):
            fault.kind(self)
            return
        if fault.kind == "signal":
            assert self.interrupts is not None
            self.interrupts.request(2)
            return
        raise OSError(5, f"injected at call {fault.number} ({self.calls[-1]})")


class _Counted:
    """A tool whose every call passes through the host."""

    def __init__(self, host: FakeHost, name: str, tool: object) -> None:
        self._host = host
        self._name = name
        self._tool = tool

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._tool, name)
        if not callable(value):
            return value
        label = f"{self._name}.{name}"
        return lambda *args, **named: self._host.around(label, lambda: value(*args, **named))


@dataclass
class _Proc:
    host: FakeHost

    def tree(self, pid: int) -> Tree:
        if pid not in self.host.processes:
            raise NoSuchProcess(f"there is no process {pid}")
        found = [self.host.processes[pid]]
        for one in found:
            found += [p for p in self.host.processes.values() if p.ppid == one.pid]
        return Tree(tuple(found))

    def process(self, pid: int) -> Process | None:
        return self.host.processes.get(pid)

    def pids(self) -> tuple[int, ...]:
        return tuple(self.host.processes)

    def signs(self, pid: int) -> Signs | None:
        one = self.host.processes.get(pid)
        return one and Signs(self.host.ran.get(pid, 0), dict.fromkeys(one.threads, one.state))

    def fire(self, pid: int, fd: int) -> None:
        self.host.fired.append((pid, fd))

    def copies(self, argv: tuple[str, ...], cwd: str, since: float) -> tuple[int, ...]:
        del since
        return tuple(
            pid for pid, one in self.host.processes.items() if (one.argv, one.cwd) == (argv, cwd)
        )

    def neglected(self, parent: int) -> frozenset[int]:
        return frozenset(
            pid for pid, one in self.host.processes.items() if one.zombie and one.ppid == parent
        )

    def surroundings(self, pid: int) -> Surroundings:
        return self.host.around_of.get(pid, Surroundings())

    def alive(self, ref: ProcessRef) -> bool:
        now = self.host.processes.get(ref.pid)
        return now is not None and now.ref == ref and not now.zombie

    def cpu_times(self, pids: Iterable[int]) -> dict[int, int]:
        return {pid: self.host.ran.get(pid, 0) for pid in pids}

    def ancestors(self, pid: int) -> tuple[int, ...]:
        if pid not in self.host.processes:
            return ()
        above = self.host.processes[pid].ppid
        return (above, *self.ancestors(above)) if above in self.host.processes else (above,)

    def devices(self, pids: Iterable[int]) -> tuple[DeviceUse, ...]:
        listed = tuple(pids)
        away = CudaState.CHECKPOINTED
        held = [
            DeviceUse(pid, 9, "/dev/nvidia0")
            for pid in listed
            if pid in self.host.cuda and self.host.cuda[pid] is not away
        ]
        left = [DeviceUse(pid, 7, "/dev/nvidia0") for pid in listed if pid == self.host.leftover]
        return (*held, *left)

    def inherited(self, pids: Iterable[int]) -> frozenset[DeviceUse]:
        return self.host.inherited.intersection(self.devices(pids))

    def look(self, tree: Tree) -> Look:
        mine = self.host.connected and tree.root.pid == ROOT_PID
        page = (Descriptor(9, LINK, "file", deleted=True),)
        tasks = tuple(
            Task(one, descriptors=page if one.pid in self.host.ranks else ())
            for one in tree.processes
        )
        space = _Spaces(self.host).of(tree.root.pid)
        return Look(tasks=tasks, tcp=CONNECTED if mine else (), space=space)

    def cuda_candidates(self, pids: Iterable[int]) -> tuple[int, ...]:
        return tuple(pid for pid in pids if pid in self.host.cuda)

    def taken(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(number for number in ids if number in self.host.processes)

    def owner(self, number: int) -> Process | None:
        users = (one for one in self.host.processes.values() if number in {one.pgid, one.sid})
        return self.host.processes.get(number) or next(users, None)

    def adopt_orphans(self, *, on: bool) -> None:
        self.host.adopting = on

    def kill(self, ref: ProcessRef) -> None:
        below = self.tree(ref.pid).processes[1:] if self.alive(ref) and ref.pid == INIT_PID else ()
        for one in below:  # all that is in a namespace ends with its process 1
            self.kill(one.ref)
        if self.alive(ref):
            if self.host.cuda.get(ref.pid) in {CudaState.RUNNING, CudaState.LOCKED}:
                self.host.ended_live.append(ref.pid)
            del self.host.processes[ref.pid]
            self.host.cuda.pop(ref.pid, None)

    def wake(self, ref: ProcessRef) -> None:
        if self.alive(ref):
            now = self.host.processes[ref.pid]
            self.host.processes[ref.pid] = replace(now, state="S")

    def half_made(self, pid: int) -> bool:
        return pid in self.host.half_made

    def users(self, paths: Collection[str]) -> dict[str, int]:
        return {path: self.host.users[path] for path in paths if path in self.host.users}

    def signal(self, pid: int, signum: int) -> None:
        del pid, signum

    def reap(self, pids: Iterable[int]) -> dict[int, int]:
        del pids
        return {}


@dataclass
class _Host:
    host: FakeHost

    def facts(self) -> HostFacts:
        return HostFacts(
            hostname="fake",
            kernel="6.18.0",
            boot_id=self.host.boot_id,
            arch="x86_64",
            libc="glibc 2.36",
            cpu_model="fake",
            cpu_flags=("avx2",),
            cpu_count=2,
            memory_total=64 * GIB,
            memory_available=self.host.memory_free,
            huge_pages=self.host.huge_pages,
            euid=0,
        )

    def owners(self, users: Iterable[int], groups: Iterable[int]) -> tuple[Owner, ...]:
        """Give a user and a group of the same number the same name."""
        kinds = (("user", users), ("group", groups))
        return tuple(
            Owner(kind, one, self.host.names.get(one, "")) for kind, ones in kinds for one in ones
        )

    def set_huge_pages(self, mode: str) -> None:
        if self.host.huge_pages_fixed:
            raise OSError(30, "Read-only file system")
        self.host.huge_pages = mode

    def unit(self, pid: int) -> None:  # noqa: ARG002 - see HostTool
        return None

    def memory_available(self, pid: int) -> int:
        del pid
        return 60 * GIB

    def free_bytes(self, folder: Path) -> int:
        del folder
        return 500 * GIB

    def writable(self, folder: Path) -> bool:
        del folder
        return True

    def executes(self, folder: Path) -> bool:
        del folder
        return True

    def place(self, folder: Path) -> Place:
        return Place("ext4", str(folder), network=False, free_inodes=1_000_000)

    def write_speed(self, folder: Path) -> float | None:
        del folder
        return 1e9


@dataclass
class _Nvidia:
    host: FakeHost

    def facts(self) -> NvidiaFacts:
        free = self.host.gpu_free - sum(self.host.strangers.values())
        gpus = tuple(
            Gpu(number, uuid, "Fake H200", 141 * GIB, free, f"0000:{number + 1:02}:00.0")
            for number, uuid in enumerate(self.host.gpus)
        )
        return NvidiaFacts(self.host.driver, "13.0", gpus)

    def uses(self, pids: Iterable[int] | None = None) -> tuple[GpuUse, ...]:
        live = {CudaState.RUNNING, CudaState.LOCKED}
        held = {
            pid: bytes_
            for pid, bytes_ in self.host.gpu_bytes.items()
            if self.host.cuda.get(pid) in live
        } | self.host.strangers
        asked = held if pids is None else pids
        first = self.host.gpus[0]
        return tuple(
            GpuUse(pid, self.host.on_gpu.get(pid, first), held[pid]) for pid in asked if pid in held
        )


@dataclass
class _Cuda:
    """The driver: four legal steps, everything else is refused."""

    host: FakeHost

    def describe(self) -> CudaBackend:
        return CudaBackend("bindings", "13.3.1", "13.0")

    def states(self, pids: Sequence[int]) -> dict[int, CudaState]:
        there = [pid for pid in pids if pid in self.host.processes]
        stopped = {pid for pid in there if self.host.processes[pid].state in {"T", "t"}}
        if unasked := stopped - self.host.opened:
            outcomes = [CudaOutcome(pid, "state", "STOPPED") for pid in sorted(unasked)]
            raise CudaCallFailed("state", outcomes)
        return {pid: self.host.cuda.get(pid, CudaState.NONE) for pid in pids}

    def muster(self, count: int) -> None:
        del count

    def open(self, first: Table[int, CudaState], threads: Table[int, int]) -> dict[int, int]:
        self.host.armed |= first
        self.host.opened |= set(first)
        return {pid: threads.get(pid) or pid + 1000 for pid in first}

    def close(self) -> None:
        self.host.armed.clear()
        self.host.opened.clear()

    def lock(self, pids: Sequence[int], timeout: float) -> dict[int, CudaState]:
        del timeout
        busy = self.host.busy & set(pids) if self.host.busy_rounds > 0 else set()
        self.host.busy_rounds -= 1
        free = [pid for pid in pids if pid not in busy]
        done = self._step("lock", free, CudaState.RUNNING, CudaState.LOCKED)
        if busy:
            late = [
                CudaOutcome(pid, "lock", "NOT_READY", CudaState.RUNNING, CudaState.RUNNING)
                for pid in sorted(busy)
            ]
            raise CudaCallFailed("lock", [*(CudaOutcome(pid, "lock") for pid in free), *late])
        return done

    def checkpoint(self, pids: Sequence[int]) -> dict[int, CudaState]:
        return self._step("checkpoint", pids, CudaState.LOCKED, CudaState.CHECKPOINTED)

    def restore(self, pids: Sequence[int], gpu_map: Table[str, str]) -> dict[int, CudaState]:
        self.host.gpu_maps.append(dict(gpu_map))
        stuck, away = self.host.stuck & set(pids), CudaState.CHECKPOINTED
        free = [pid for pid in pids if pid not in stuck]
        done = self._step("restore", free, away, CudaState.LOCKED)
        if stuck:
            bad = [CudaOutcome(pid, "restore", "NOT_PERMITTED", away, away) for pid in stuck]
            raise CudaCallFailed("restore", [*(CudaOutcome(pid, "restore") for pid in free), *bad])
        return done

    def unlock(self, pids: Sequence[int]) -> dict[int, CudaState]:
        return self._step("unlock", pids, CudaState.LOCKED, CudaState.RUNNING)

    def _step(
        self, action: str, pids: Sequence[int], before: CudaState, after: CudaState
    ) -> dict[int, CudaState]:
        outcomes = []
        for pid in pids:
            now = self.host.cuda[pid]
            legal = now in {before, after}
            if legal:
                self.host.cuda[pid] = after
                self._park(pid, stopped=after is CudaState.CHECKPOINTED)
            error = "" if legal else "ILLEGAL_STATE"
            outcomes.append(CudaOutcome(pid, action, error, now, self.host.cuda[pid]))
        if any(not outcome.ok for outcome in outcomes):
            raise CudaCallFailed(action, outcomes)
        return dict.fromkeys(pids, after)

    def _park(self, pid: int, *, stopped: bool) -> None:
        """As the helpers do: a process whose state is away must not run."""
        now, ends = self.host.processes[pid], "TS" if stopped else "ST"
        if now.state == ends[1]:
            self.host.processes[pid] = replace(now, state=ends[0])


class NoCriu:
    """The CRIU of a host that has none."""

    @property
    def version(self) -> Version:
        raise CriuMissing("CRIU was not found")


@dataclass
class _Criu:
    """A CRIU that freezes, streams a few images, asks for the verdict and ends the tree."""

    host: FakeHost
    version: Version = field(default_factory=lambda: Version("4.2.1"))

    def dump(self, run: DumpRun) -> None:
        here = {number: pid for pid, number in self.host.inside.items()} if run.place else {}
        tree = _Proc(self.host).tree(here.get(run.pid, run.pid))
        for one in tree.processes:
            self.host.criu_found[one.pid] = one.state
            self.host.processes[one.pid] = replace(one, state="t")
        try:
            sockets = CONNECTED if self.host.connected else ()
            for name, data in criuimages.of_tree(tree, self.host.pages, sockets).items():
                self.host.around(f"criu.image.{name}", lambda n=name, d=data: _pipe(run, n, d))
            if select.select([run.stop_fd], [], [], 0)[0]:
                raise Stopped("stopped by a signal")
            self.host.around("criu.commit", run.commit)
            self.host.around("criu.committed", lambda: None)
        finally:
            for one in tree.processes:
                if one.pid in self.host.processes:  # one may have died meanwhile
                    self.host.processes[one.pid] = one
        if not run.leave_running:
            for one in tree.processes:
                del self.host.processes[one.pid]
                self.host.cuda.pop(one.pid, None)

    def restore(self, run: RestoreRun) -> None:
        names = criuimages.names(tuple(self.host.restored))
        for name in names:
            if run.has(name):
                self.host.around(f"criu.image.{name}", lambda n=name: _drain(run, n))
        if select.select([run.stop_fd], [], [], 0)[0]:
            raise Stopped("stopped by a signal")
        parent, shift = os.getpid(), 0
        if run.place is not None:
            parent, shift = self._make(run.place), INIT_PID + 1 - ROOT_PID
        self.host.making = True
        for pid, one in self.host.restored.items():
            above = one.ppid + shift if one.ppid in self.host.restored else parent
            self.host.processes[pid + shift] = moved(one, shift, above)
        for pid in [pid for pid in self.host.gpu_bytes if pid in self.host.restored]:
            self.host.gpu_bytes[pid + shift] = self.host.gpu_bytes.pop(pid)
        for pid in self.host.gpu_bytes:
            self.host.cuda[pid] = CudaState.CHECKPOINTED
            if self.host.processes[pid].state == "S":
                self.host.processes[pid] = replace(self.host.processes[pid], state="T")
        run.approve()
        self.host.making = False
        self.host.around("criu.approve", lambda: None)

    def _make(self, place: NewSpace) -> int:
        """Make a pid namespace, and have it made ready."""
        self.host.making = True
        init = process(INIT_PID, os.getpid(), comm="gpuckpt-init")
        self.host.processes[INIT_PID] = init
        # each with the thread that the driver works through
        made = [number for pid in self.host.restored for number in (pid, pid + 1000)]
        self.host.inside = {number + INIT_PID + 1 - ROOT_PID: number for number in made}
        try:
            self.host.around("criu.ready", lambda: place.ready(Space(init.ref)))
        except BaseException:
            self.host.processes.pop(INIT_PID, None)
            raise
        return INIT_PID


def _pipe(run: DumpRun, name: str, data: bytes) -> None:
    """Feed one image through a pipe, as CRIU does on a dump."""
    read, write = os.pipe()

    def feed() -> None:
        view = memoryview(data)
        with suppress(BrokenPipeError):
            while view:
                view = view[os.write(write, view) :]
        os.close(write)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        run.store(name, read)
    finally:
        os.close(read)
        feeder.join()


def _drain(run: RestoreRun, name: str) -> None:
    """Take one image out of a pipe, as CRIU does on a restore."""
    read, write = os.pipe()

    def take() -> None:
        while os.read(read, 1 << 16):
            pass
        os.close(read)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        run.send(name, write)
    finally:
        os.close(write)
        taker.join()


@dataclass
class _Cpus:
    """Two CPUs; `host.bindings` says who is bound, `host.refused` who cannot be."""

    host: FakeHost

    def bound(self, threads: Iterable[int]) -> dict[int, frozenset[int]]:
        return {one: cpus for one in threads if (cpus := self.host.bindings.get(one))}

    def bind(self, thread: int, cpus: Iterable[int] = ()) -> bool:
        self.host.bindings[thread] = frozenset(cpus)
        return thread not in self.host.refused


@dataclass
class _Memory:
    """Every process has just the host's pages, but for one byte where `host.spoiled` says so."""

    host: FakeHost

    def mappings(self, pid: int) -> tuple[Mapping, ...]:
        assert pid in self.host.processes
        return (Mapping(criuimages.ADDRESS, criuimages.ADDRESS + (1 << 20), "rw-p", "[heap]"),)

    def populated(self, pid: int) -> tuple[tuple[int, int], ...]:
        start, found = criuimages.ADDRESS, [(criuimages.ADDRESS, criuimages.ADDRESS + 0x40000)]
        if self.host.cuda.get(pid) is CudaState.CHECKPOINTED:
            start = self._copy()
            found += [(start, start + COPY), (start + 2 * COPY, start + 3 * COPY)]
        return tuple(found)

    def task(self, pid: int) -> FakeMemory:
        assert pid in self.host.processes
        found = bytearray(self.host.pages)
        if pid in self.host.spoiled:
            found[self.host.spoiled[pid]] ^= 1
        turn = len(self.host.gpu_maps) if pid in self.host.forgetful else 0
        copies = (bytes([pid % 100 + number]) * COPY for number in (1, 2))
        first, second = (bytes([turn]) + one[1:] for one in copies)
        high, low = divmod(time.time_ns() + len(self.host.gpu_maps) * 10**10, 1 << 32)
        stamp = struct.pack("<II", high, low)  # as driver 580 does it
        second = second[:STAMP] + stamp + second[STAMP + len(stamp) :]
        where = self._copy()
        return FakeMemory(bytes(found), {where: first, where + 2 * COPY: second})

    def _copy(self) -> int:
        """Return where the driver puts what it takes from the GPU."""
        return COPIES + (len(self.host.gpu_maps) * 16 * COPY if self.host.wandering else 0)


class FakeMemory:
    """The memory of one process."""

    end = 1 << 64

    def __init__(self, data: bytes, more: Table[int, bytes] = MappingProxyType({})) -> None:
        self._data = {criuimages.ADDRESS: data, **more}

    def fill(self, view: memoryview, stretches: Sequence[tuple[int, int]]) -> int:
        done = 0
        for address, length in stretches:
            start = max(one for one in self._data if one <= address)
            at, data = address - start, self._data[start]
            assert 0 <= at <= at + length <= len(data)
            view[done : done + length] = data[at : at + length]
            done += length
        return done

    def close(self) -> None:
        pass


@dataclass
class _Files:
    """Every file is there but those in `host.missing`."""

    host: FakeHost

    def silent(self, paths: Iterable[str], pids: Iterable[int] = ()) -> tuple[str, ...]:
        del paths, pids
        return self.host.silent

    def look(self, path: str, *, build_id: bool) -> HostFile | None:
        del build_id
        mode = 0o040755 if path in self.host.folders else 0o100644
        return None if path in self.host.missing else HostFile(path, 10, mode, 1, "")

    def digest(self, path: str, *, full: bool, on_bytes: Callable[[int], None]) -> Digest:
        del path
        on_bytes(10)
        return Digest("d" * 64, not full, 10, 1)

    def writable(self, folder: str) -> bool:
        return folder not in self.host.missing

    def locks(self, path: str) -> tuple[FileLock, ...]:
        return self.host.file_locks.get(path, ())

    def packages(self, prefix: str) -> tuple[str, ...] | None:
        return self.host.packages.get(prefix)

    def remaps(self, folder: str) -> tuple[Remap, ...]:
        return tuple(one for one in self.host.remaps if one.path.startswith(f"{folder}/"))

    def remove(self, path: str) -> None:
        self.host.remaps = [one for one in self.host.remaps if one.path != path]


@dataclass
class _Software:
    """The job computes with what `host.survey` tells, and all of it is here as it was."""

    host: FakeHost

    def survey(self, processes: Collection[Process], **_: Any) -> Survey:
        del processes
        return self.host.survey

    def python(self, program: str) -> str:
        found = (one.version for one in self.host.survey.pythons if one.program == program)
        return next(found, "")

    def installed(self, folder: str, names: Collection[str]) -> dict[str, Installed]:
        here = [one for one in self.host.survey.loaded if one.folder == folder]
        return {one.name: one for one in here if one.name in names}

    def beside(self, path: str) -> tuple[str, ...]:
        return tuple(one.version for one in self.host.survey.libraries if one.path == path)

    def digests(self, paths: Iterable[str], *, full: bool) -> dict[str, Digest | None]:
        del full
        return {path: self.host.survey.digests.get(path) for path in paths}

    def walk(self, path: str, **_: Any) -> Walk | None:
        return self.host.trees.get(path)

    def differences(self, old: bytes, new: bytes) -> list[tuple[str, str]]:
        return [("", "changed")] if old != new else []


def _carried(path: str, why: Carriage) -> CarriedFile:
    whole = ((0, len(WORK)),)
    about = {"size": len(WORK), "mode": 0o644, "uid": 0, "gid": 0, "mtime_ns": 1}
    return CarriedFile((path,), "", 1, 9, extents=whole, exact=False, why=why, **about)


@dataclass
class _Carried:
    """No job here has files in memory; what goes along of those in `host.used` holds WORK."""

    host: FakeHost

    def used(self, pids: Iterable[int], reach: Callable[[str], str] = str) -> tuple[UsedFile, ...]:
        del pids, reach
        return self.host.used

    def used_of(
        self, tree: Iterable[Opened], reach: Callable[[str], str] = str
    ) -> tuple[UsedFile, ...]:
        del tree, reach
        return self.host.used

    def examine(
        self,
        paths: Table[str, bool],
        links: Collection[str],
        pids: Iterable[int] = (),
        work: Table[str, Carriage] = MappingProxyType({}),
    ) -> tuple[CarriedFile, ...]:
        del pids
        assert not paths
        assert not links
        return tuple(_carried(path, why) for path, why in work.items())

    def copy(self, file: CarriedFile, into: int) -> str:
        assert file.bytes == os.write(into, WORK)
        return blake3(WORK).hexdigest()

    def identity(self, path: str) -> Identity | None:
        there = path in self.host.folders - self.host.missing
        return (
            Identity(1, 1, regular=False, mode=0o755, uid=0, gid=0, size=0, folder=True)
            if there
            else None
        )

    def is_program(self, path: str) -> bool:
        return path.endswith(".so")

    def readable(self, path: str) -> str:
        return "Permission denied" if path in self.host.missing else ""

    def listed(self, path: str, most: int, leave: Iterable[str] = ()) -> Listing:
        del most, leave
        if path in self.host.missing:
            raise FileNotFoundError(2, "No such file", path)
        return Listing(self.host.included.get(path, ()))

    def room(self, folder: str) -> int | None:
        del folder
        return 1 << 40


@dataclass
class _Net:
    """Every port is free but those in `host.ports`: one state after the other, the last stays.

    `host.cut` are the processes whose connections CRIU has cut.
    """

    host: FakeHost

    def port(self, protocol: str, address: str, port: int, *, dual: bool = False) -> PortState:
        del protocol, address, dual
        states = self.host.ports.get(port, [PortState.FREE])
        return states.pop(0) if len(states) > 1 else states[0]

    def holders(
        self, protocol: str, port: int, address: str = "", *, listening: bool = False
    ) -> tuple[int, ...]:
        del protocol, address, listening
        return self.host.port_holders.get(port, ())

    def unix_users(self, names: Iterable[SocketName]) -> dict[SocketName, tuple[int, ...]]:
        wanted = set(names)
        return {name: pids for name, pids in self.host.unix_users.items() if name in wanted}

    def free_connections(self, pids: Iterable[int], log: Path) -> None:
        del log
        self.host.cut -= set(pids)

    def cut(self, pids: Iterable[int], log: Path) -> tuple[str, ...]:
        del log
        return tuple(f"TCP connections of process {pid}" for pid in pids if pid in self.host.cut)

    def tables(self) -> tuple[str, ...]:
        return ()

    def hold(self, name: str, ends: Collection[Ends]) -> None:
        assert len(ends) == len(CONNECTED)
        self.host.filters.add(name)

    def release(self, name: str) -> None:
        if self.host.no_filters:
            raise OSError(93, "Protocol not supported")
        self.host.filters.discard(name)

    def held(self, name: str) -> bool:
        return name in self.host.filters

    def remains(
        self, places: Collection[tuple[str, int]], ends: Collection[Ends]
    ) -> tuple[Connection, ...]:
        del places, ends
        return tuple(self.host.remains)

    def forget(self, one: Connection) -> bool:
        if self.host.stubborn:
            return False
        self.host.remains.remove(one)
        return True


@dataclass
class _Spaces:
    """One pid namespace at most, that of `INIT_PID`."""

    host: FakeHost

    def of(self, pid: int) -> Space | None:
        init = self.host.processes.get(INIT_PID)
        return Space(init.ref) if init is not None and pid in self.host.inside else None

    def numbers(self, space: Space) -> dict[int, int]:
        assert space.init.pid == INIT_PID
        return dict(self.host.inside)

    def number(self, space: Space) -> int:
        assert space.init.pid == INIT_PID
        return 4026532500


@dataclass
class _Ranks:
    """Processes that do at once what they are asked for; `held` says who asks."""

    host: FakeHost
    held: list[int] = field(default_factory=list)

    def look(self, pids: Iterable[int]) -> tuple[Rank, ...]:
        there = [pid for pid in pids if pid in self.host.ranks and pid in self.host.processes]
        return tuple(self._rank(pid, self.host.ranks[pid]) for pid in there)

    def _rank(self, pid: int, one: FakeRank) -> Rank:
        failed = one.arrived if one.fails and one.confirmed == one.arrived else 0
        return Rank(
            pid=pid,
            step=one.step,
            arrived=one.arrived,
            quiet=one.quiet,
            failed=failed,
            text=f"down: {one.fails}" if failed else "",
            asked=pid in self.held,
        )

    def ask(self, pids: Iterable[int]) -> None:
        self.held = list(pids)

    def target(self, step: int) -> None:
        for pid in self.held:
            one = self.host.ranks[pid]
            if not one.late:
                one.step = one.arrived = step

    def confirm(self, step: int) -> None:
        for pid in self.held:
            one = self.host.ranks[pid]
            assert one.arrived == step, "decided while not all wait there"
            one.confirmed = step
            if not one.fails:
                one.quiet = step
                one.stops += 1

    def release(self, pids: Iterable[int]) -> None:
        for pid in set(pids) & self.host.processes.keys():
            if (one := self.host.ranks.get(pid)) and not one.stuck:
                assert self.host.cuda.get(pid, CudaState.RUNNING) is CudaState.RUNNING
                assert self.host.processes[pid].state == "S"
                one.arrived = one.quiet = 0

    def close(self) -> None:
        for pid in self.held:
            if (one := self.host.ranks.get(pid)) and one.confirmed != one.arrived:
                one.arrived = 0
        self.held = []


@dataclass
class _Shell:
    host: FakeHost

    def run(
        self,
        line: str,
        timeout: float,
        stop_fd: int,
        environment: Table[str, str] = MappingProxyType({}),
    ) -> str:
        del timeout, stop_fd
        self.host.told[line] = dict(environment)
        return self.host.hook_answer if environment else self.host.probe_answer


@dataclass
class _Starter:
    host: FakeHost

    def account(self, uid: int, gid: int) -> Account:
        return Account((gid,), {"HOME": f"/home/{uid}"})

    def ready(self, what: Start) -> FakeReady:
        pid = COLD_PID + len(self.host.started)
        self.host.started.append(what)
        self.host.processes[pid] = process(
            pid, os.getpid(), argv=("launch.py", *what.argv), cwd=what.cwd or "/"
        )
        return FakeReady(self.host, pid)


@dataclass
class FakeReady:
    """A process that waits to become a job."""

    host: FakeHost
    pid: int

    def go(self, stop_fd: int) -> str:
        del stop_fd
        return str(self.host.around("ready.go", self._go))

    def _go(self) -> str:
        if self.host.unstartable or self.host.ends_with is not None:
            del self.host.processes[self.pid]
            return self.host.unstartable
        one = self.host.processes[self.pid]
        self.host.processes[self.pid] = replace(one, argv=self.host.started[-1].argv)
        return ""

    def status(self) -> int | None:
        return None if self.pid in self.host.processes else self.host.ends_with

    def give_up(self) -> None:
        self.host.processes.pop(self.pid, None)
