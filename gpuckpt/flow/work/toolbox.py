"""The tools an operation works with, as the flow sees them.

Each protocol is one foreign thing. The real ones live in gpuckpt.tools, the test host's in
tests/fakes; a flow never knows which it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from gpuckpt.flow.work.carriedtool import CarriedTool
    from gpuckpt.flow.work.gputool import CudaTool, NvidiaTool
    from gpuckpt.flow.work.proctool import ProcTool, SpacesTool
    from gpuckpt.flow.work.softwaretool import SoftwareTool
    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.model import HostFacts, Owner, Version
    from gpuckpt.tools.addresses import Ends
    from gpuckpt.tools.cooperation import Rank
    from gpuckpt.tools.criurun import DumpRun, RestoreRun
    from gpuckpt.tools.destination import Place
    from gpuckpt.tools.diag import Connection
    from gpuckpt.tools.digest import Digest
    from gpuckpt.tools.files import HostFile, Remap
    from gpuckpt.tools.locks import FileLock
    from gpuckpt.tools.net import PortState
    from gpuckpt.tools.starting import Account, Ready, Start
    from gpuckpt.tools.taskmemory import Mapping as Mapped
    from gpuckpt.tools.taskmemory import Memory
    from gpuckpt.tools.units import Unit
    from gpuckpt.tools.unixnames import SocketName


class HostTool(Protocol):
    """The host: kernel, CPU, memory, disks."""

    def facts(self) -> HostFacts:
        """Return what a manifest records and a restore compares."""

    def owners(self, users: Iterable[int], groups: Iterable[int]) -> tuple[Owner, ...]:
        """Return what users and groups are called here; may take long."""

    def set_huge_pages(self, mode: str) -> None:
        """Set transparent huge pages of the whole host to `mode`; OSError if that cannot be."""

    def unit(self, pid: int) -> Unit | None:
        """Return the systemd service that a process is in, None if it is in none."""

    def memory_available(self, pid: int) -> int:
        """Return the bytes of memory a process can still get, its cgroup's limit counted."""

    def free_bytes(self, folder: Path) -> int:
        """Return the bytes this user can still write under `folder`."""

    def writable(self, folder: Path) -> bool:
        """Whether files can be made in a folder."""

    def executes(self, folder: Path) -> bool:
        """Whether programs may be started from a folder, or the nearest above it."""

    def place(self, folder: Path) -> Place:
        """Return which filesystem a folder is on."""

    def write_speed(self, folder: Path) -> float | None:
        """Return the bytes a second that a folder takes, by writing a little; None if none."""


class CriuTool(Protocol):
    """CRIU; see gpuckpt.tools.criu for what a run promises and raises."""

    @property
    def program(self) -> str:
        """The program that was found; CriuMissing, CriuTooOld or CriuBroken if none can work."""

    @property
    def version(self) -> Version:
        """The version of the CRIU that was found."""

    def check(self) -> str:
        """Return what CRIU's own check of this kernel says; CriuBroken if it cannot work."""

    def dump(self, run: DumpRun) -> None:
        """Dump a tree to the end: it is gone then, or goes on with `leave_running`."""

    def restore(self, run: RestoreRun) -> None:
        """Restore a tree as children of this process."""


class NetTool(Protocol):
    """The network of this host."""

    def port(self, protocol: str, address: str, port: int, *, dual: bool = ...) -> PortState:
        """Say whether `address`:`port` could be bound now, with `dual` for IPv4 as well."""

    def holders(
        self, protocol: str, port: int, address: str = ..., *, listening: bool = ...
    ) -> tuple[int, ...]:
        """Return the processes that hold, or listen on, a socket there, or at any address."""

    def unix_users(self, names: Iterable[SocketName]) -> dict[SocketName, tuple[int, ...]]:
        """Return those names of Unix sockets that are in use, and who is seen to have them."""

    def free_connections(self, pids: Iterable[int], log: Path) -> None:
        """Undo what a CRIU that was killed has left on TCP connections; OSError if refused."""

    def cut(self, pids: Iterable[int], log: Path) -> tuple[str, ...]:
        """Say what `free_connections` would have to undo, one line a thing."""

    def tables(self) -> tuple[str, ...]:
        """Return the packet filter tables that a CRIU has made and nobody has removed."""

    def hold(self, name: str, ends: Iterable[Ends]) -> None:
        """Drop every packet of these connections, by a table `name`; OSError if refused."""

    def release(self, name: str) -> None:
        """Remove that table if it is there; OSError if refused."""

    def held(self, name: str) -> bool:
        """Whether there is such a table."""

    def remains(
        self, places: Collection[tuple[str, int]], ends: Collection[Ends]
    ) -> tuple[Connection, ...]:
        """Return closed connections at these addresses and ports, and any with these very ends."""

    def forget(self, one: Connection) -> bool:
        """Let the kernel forget a closed connection; False if it cannot, OSError if refused."""


class FilesTool(Protocol):
    """Files outside the image, as they are on this host."""

    def look(self, path: str, *, build_id: bool) -> HostFile | None:
        """Return what is at `path`, None if nothing can be reached there."""

    def digest(self, path: str, *, full: bool, on_bytes: Callable[[int], None]) -> Digest:
        """Return the digest of a regular file, of samples or `full`; OSError if unreadable."""

    def writable(self, folder: str) -> bool:
        """Whether names can be made in a folder."""

    def locks(self, path: str) -> tuple[FileLock, ...]:
        """Return the locks that processes of this host have on a file now."""

    def packages(self, prefix: str) -> tuple[str, ...] | None:
        """Return the Python packages installed below a prefix; None if it is not there."""

    def silent(self, paths: Iterable[str], pids: Iterable[int] = ...) -> tuple[str, ...]:
        """Return the filesystems of paths and processes that do not answer."""

    def remaps(self, folder: str) -> tuple[Remap, ...]:
        """Return the names in a folder that a CRIU has made for files without one."""

    def remove(self, path: str) -> None:
        """Remove one name; OSError if it may not be."""


class CpusTool(Protocol):
    """The CPUs that threads may run on."""

    def bound(self, threads: Iterable[int]) -> dict[int, frozenset[int]]:
        """Return the CPUs of those threads that may not run on just the CPUs of this host."""

    def bind(self, thread: int, cpus: Iterable[int] = ()) -> bool:
        """Let a thread run on these CPUs alone, or on all; whether it got just these."""


class MemoryTool(Protocol):
    """The memory of other processes; see gpuckpt.tools.taskmemory."""

    def mappings(self, pid: int) -> tuple[Mapped, ...]:
        """Return what a process has mapped, in the order of addresses; nothing if it is gone."""

    def populated(self, pid: int) -> tuple[tuple[int, int], ...]:
        """Return where private memory of a process holds bytes of its own, as starts and ends.

        OSError if the kernel does not say.
        """

    def task(self, pid: int) -> Memory:
        """Open all memory of a process; OSError if that may not be."""

    def mapped(self, pid: int, mapping: Mapped) -> Memory:
        """Open what lies behind a mapping; OSError if that may not be."""

    def opened(self, pid: int, fd: int) -> Memory:
        """Open what lies behind a descriptor; OSError if that may not be."""


class RanksTool(Protocol):
    """The processes of a job that cooperate; see gpuckpt.cooperate for what they agree on."""

    def look(self, pids: Iterable[int]) -> tuple[Rank, ...]:
        """Return those of the processes that cooperate, as they stand now."""

    def ask(self, pids: Iterable[int]) -> None:
        """Hold these processes; ProcessUnfit if another does, QuiesceFailed if one has gone."""

    def target(self, step: int) -> None:
        """Let those that are held stop at this step, and at no earlier one."""

    def confirm(self, step: int) -> None:
        """Decide that those that are held let go at this step, where all of them wait."""

    def release(self, pids: Iterable[int]) -> None:
        """Let these go on, whether they wait or have let go."""

    def close(self) -> None:
        """Hold nobody any more; who has not let go by now goes on."""


class ShellTool(Protocol):
    """The user's own commands."""

    def run(
        self, line: str, timeout: float, stop_fd: int, environment: Mapping[str, str] = ...
    ) -> str:
        """Run a command line; empty if it succeeded within `timeout` seconds, else why not.

        `environment` is added to the short one that it gets.

        Raises:
            Stopped: `stop_fd` became readable.
        """


class StartTool(Protocol):
    """Programs that become jobs; see gpuckpt.tools.starting."""

    def account(self, uid: int, gid: int) -> Account:
        """Return what is known of a user here."""

    def ready(self, what: Start) -> Ready:
        """Make the process of a job, which waits to be told to go; OSError if it has no log."""


class Toolbox(Value, frozen=True):
    """All tools of one operation.

    `run_dir` is the folder that all gpuckpts of this boot share, whatever their `state_dir`.
    """

    proc: ProcTool
    host: HostTool
    nvidia: NvidiaTool
    cuda: CudaTool
    criu: CriuTool
    files: FilesTool
    carried: CarriedTool
    net: NetTool
    cpus: CpusTool
    memory: MemoryTool
    ranks: RanksTool
    shell: ShellTool
    spaces: SpacesTool
    software: SoftwareTool
    starter: StartTool
    stores: StoresTool
    state_dir: Path
    run_dir: Path
