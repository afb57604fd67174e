"""The tools an operation works with, as the flow sees them.

Each protocol is one foreign thing. The real ones live in gpuckpt.tools, the test host's in
tests/fakes; a flow never knows which it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from gpuckpt.flow.work.carriedtool import CarriedTool
    from gpuckpt.model import (
        CudaBackend,
        CudaState,
        DeviceUse,
        GpuUse,
        HostFacts,
        NvidiaFacts,
        Process,
        ProcessRef,
        Tree,
        Version,
    )
    from gpuckpt.tools.criu import DumpRun, RestoreRun
    from gpuckpt.tools.destination import Place
    from gpuckpt.tools.files import HostFile, Remap
    from gpuckpt.tools.locks import FileLock
    from gpuckpt.tools.look import Look
    from gpuckpt.tools.net import PortState
    from gpuckpt.tools.signs import Signs
    from gpuckpt.tools.surroundings import Surroundings
    from gpuckpt.tools.units import Unit


class ProcTool(Protocol):
    """/proc and signals: what the kernel says of processes."""

    def tree(self, pid: int) -> Tree:
        """Return the process and all its descendants; NoSuchProcess if it is gone."""

    def pids(self) -> tuple[int, ...]:
        """Return the pids of all processes there are."""

    def process(self, pid: int) -> Process | None:
        """Return one process, None if there is none."""

    def alive(self, ref: ProcessRef) -> bool:
        """Whether this very process still exists, as more than a zombie."""

    def cpu_times(self, pids: Iterable[int]) -> dict[int, int]:
        """Return the nanoseconds that each thread of some processes has run so far."""

    def ancestors(self, pid: int) -> tuple[int, ...]:
        """Return the pids above `pid`, nearest first."""

    def devices(self, pids: Iterable[int]) -> tuple[DeviceUse, ...]:
        """Return every GPU-like device file the processes hold by descriptor or mapping."""

    def look(self, tree: Tree) -> Look:
        """Return all that matters of a tree before a dump, read only."""

    def surroundings(self, pid: int) -> Surroundings:
        """Return what a process lives in that no image carries."""

    def signs(self, pid: int) -> Signs | None:
        """Return a process's signs of life, None if it is gone."""

    def copies(self, argv: tuple[str, ...], cwd: str, since: float) -> tuple[int, ...]:
        """Return processes with this command line and folder, started at `since` or later."""

    def neglected(self, parent: int) -> frozenset[int]:
        """Return the zombies that a process has not waited for."""

    def cuda_candidates(self, pids: Iterable[int]) -> tuple[int, ...]:
        """Return those processes that are worth asking the driver about."""

    def taken(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return those of the numbers that a task, thread or zombie uses now."""

    def owner(self, number: int) -> Process | None:
        """Return the process that uses a number: as its pid, a thread's, its group or session."""

    def adopt_orphans(self, *, on: bool) -> None:
        """Become, or stop being, the parent of whatever loses its own below this process."""

    def kill(self, ref: ProcessRef) -> None:
        """SIGKILL this very process; nothing if it is gone or the pid is another's now."""

    def wake(self, ref: ProcessRef) -> None:
        """SIGCONT this very process; nothing if it is gone or the pid is another's now."""

    def half_made(self, pid: int) -> bool:
        """Whether a process is still what CRIU works with in a restore, and not yet its own."""

    def users(self, paths: Collection[str]) -> dict[str, int]:
        """Return those of the files that a process has open or mapped under that name, and who."""

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a child of this process; nothing if it has ended."""

    def reap(self, pids: Iterable[int]) -> dict[int, int]:
        """Wait, without blocking, for those pids that are dead children of this process.

        Returns the exit status of each reaped now, negative for a signal. Other children are left
        alone: whoever started them waits for them.
        """


class HostTool(Protocol):
    """The host: kernel, CPU, memory, disks."""

    def facts(self) -> HostFacts:
        """Return what a manifest records and a restore compares."""

    def unit(self, pid: int) -> Unit | None:
        """Return the systemd service that a process is in, None if it is in none."""

    def memory_available(self, pid: int) -> int:
        """Return the bytes of memory a process can still get, its cgroup's limit counted."""

    def free_bytes(self, folder: Path) -> int:
        """Return the bytes this user can still write under `folder`."""

    def writable(self, folder: Path) -> bool:
        """Whether files can be made in a folder."""

    def place(self, folder: Path) -> Place:
        """Return which filesystem a folder is on."""

    def write_speed(self, folder: Path) -> float | None:
        """Return the bytes a second that a folder takes, by writing a little; None if none."""


class NvidiaTool(Protocol):
    """NVML; on a host without an NVIDIA driver `facts` is None and nothing is used."""

    def facts(self) -> NvidiaFacts | None:
        """Return driver and GPUs."""

    def uses(self, pids: Iterable[int] | None = None) -> tuple[GpuUse, ...]:
        """Return the bytes the given processes, or all there are, hold on each GPU."""


class CudaTool(Protocol):
    """The driver's checkpoint calls over many processes, side by side.

    Every call takes pids, returns once all have an answer, and raises CudaCallFailed with the
    state of every pid read back if any of them refused. Nothing toggles: a process that is
    already where an action leads is left alone, one that is anywhere else is refused.
    """

    def describe(self) -> CudaBackend:
        """Say what makes the calls; DriverUnfit if there is a driver and nothing can."""

    def states(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """Ask the driver what it knows of each process; NONE for one that is gone."""

    def open(
        self, first: Mapping[int, CudaState], threads: Mapping[int, int] = ...
    ) -> dict[int, int]:
        """Get ready to act on these processes and to bring them back to `first` if we die.

        May be called again for more. `first` CHECKPOINTED means: leave it as it is. Returns the
        thread of each through which the driver works, 0 if it does not say; `threads` gives those
        of processes that are parked, which cannot be asked for it.
        """

    def lock(self, pids: Sequence[int], timeout: float) -> dict[int, CudaState]:
        """RUNNING to LOCKED, at most `timeout` seconds each."""

    def checkpoint(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """LOCKED to CHECKPOINTED: GPU bytes move into the process's own memory.

        A process whose restore thread is known is parked by it: stopped, and none of its threads
        has run since the driver took its state.
        """

    def restore(self, pids: Sequence[int], gpu_map: Mapping[str, str]) -> dict[int, CudaState]:
        """CHECKPOINTED to LOCKED; `gpu_map` old UUID to new, empty for the same GPUs.

        A parked process runs again after it.
        """

    def unlock(self, pids: Sequence[int]) -> dict[int, CudaState]:
        """LOCKED to RUNNING."""

    def close(self) -> None:
        """Let go of all processes as they are now; no undo after this.

        Only a process whose call has not come back keeps its way back to `first`.
        """


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

    def port(self, protocol: str, address: str, port: int) -> PortState:
        """Say whether `address`:`port` could be bound now."""

    def holders(self, protocol: str, port: int, *, listening: bool = ...) -> tuple[int, ...]:
        """Return the processes that hold, or listen on, a socket with this local port."""

    def free_connections(self, pids: Iterable[int], log: Path) -> None:
        """Undo what a CRIU that was killed has left on TCP connections; OSError if refused."""

    def cut(self, pids: Iterable[int], log: Path) -> tuple[str, ...]:
        """Say what `free_connections` would have to undo, one line a thing."""

    def tables(self) -> tuple[str, ...]:
        """Return the packet filter tables that a CRIU has made and nobody has removed."""


class FilesTool(Protocol):
    """Files outside the image, as they are on this host."""

    def look(self, path: str, *, build_id: bool) -> HostFile | None:
        """Return what is at `path`, None if nothing can be reached there."""

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


class ShellTool(Protocol):
    """The user's own commands."""

    def run(self, line: str, timeout: float, stop_fd: int) -> str:
        """Run a command line; empty if it succeeded within `timeout` seconds, else why not.

        Raises:
            Stopped: `stop_fd` became readable.
        """


@dataclass(frozen=True, slots=True)
class Toolbox:
    """All tools of one operation."""

    proc: ProcTool
    host: HostTool
    nvidia: NvidiaTool
    cuda: CudaTool
    criu: CriuTool
    files: FilesTool
    carried: CarriedTool
    net: NetTool
    cpus: CpusTool
    shell: ShellTool
    state_dir: Path
