"""The values every part of gpuckpt talks in: processes, GPUs, hosts, findings.

Everything here is frozen and knows no program, no file and no terminal. Sizes are bytes,
durations seconds, and a pid is the number the host's own pid namespace gives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import total_ordering

from gpuckpt.value import Value


class CudaState(StrEnum):
    """What the driver says of a process (cuCheckpointProcessGetState); NONE: no CUDA in it."""

    NONE = "none"
    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"


class TcpPolicy(StrEnum):
    """What becomes of connected TCP sockets; NONE: nobody has decided, or there are none."""

    NONE = "none"
    ESTABLISHED = "established"
    CLOSE = "close"


class Severity(StrEnum):
    """A blocker stops an operation before anything is touched; a warning does not."""

    BLOCKER = "blocker"
    WARNING = "warning"


class CudaBackend(Value, frozen=True):
    """What makes the driver calls: `kind` is bindings, binary or none (no NVIDIA driver here).

    `cuda` is the CUDA version the driver speaks, as far as it says; `note` why it is not a better
    kind.
    """

    kind: str
    version: str = ""
    cuda: str = ""
    note: str = ""


class CudaOutcome(Value, frozen=True):
    """What came of one driver call on one process.

    `action` is state, open, lock, checkpoint, restore or unlock. `error` is empty if the process
    is where the action leads, else the CUresult's name without CUDA_ERROR_ (NOT_READY: the lock's
    time ran out), or one of GONE, BUSY (another gpuckpt is at work on it), NO_ANSWER, CALLER_LOST,
    STOPPED (the process is, so the driver cannot ask it), NOT_STOPPED (its threads could not be
    held), UNEXPECTED_STATE, UNKNOWN. `before` and `after` were read from the driver; None: it could
    not be read. `gone`: the process died. `restore_thread`, told by open, is the thread that the
    driver works through, 0 if it does not say.
    """

    pid: int
    action: str
    error: str = ""
    before: CudaState | None = None
    after: CudaState | None = None
    gone: bool = False
    detail: str = ""
    restore_thread: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the process is where the action leads."""
        return not self.error

    @property
    def text(self) -> str:
        """One line for people."""
        if self.ok:
            return f"pid {self.pid}: {self.action} done"
        if self.gone and self.before is not None:
            return f"pid {self.pid}: the process died during {self.action}"
        if self.gone:
            return f"pid {self.pid}: the process is gone"
        state = f"state {self.after}" if self.after is not None else "state unknown"
        return f"pid {self.pid}: {self.detail or self.error} ({self.error}), {state}"


class ProcessRef(Value, frozen=True):
    """One process for as long as it lives: a pid alone can be recycled.

    `start_time` is field 22 of /proc/PID/stat, in clock ticks since boot.
    """

    pid: int
    start_time: int


class Process(Value, frozen=True):
    """One process of a tree, as /proc shows it."""

    ref: ProcessRef
    ppid: int
    pgid: int
    sid: int
    state: str
    threads: tuple[int, ...]
    comm: str
    argv: tuple[str, ...]
    exe: str
    cwd: str
    uid: int
    gid: int
    rss: int
    tty: int = 0
    tracer: int = 0
    kernel_thread: bool = False

    @property
    def pid(self) -> int:
        """The process id in the host's pid namespace."""
        return self.ref.pid

    @property
    def stopped(self) -> bool:
        """Held by a signal or by a tracer: it can answer nobody."""
        return self.state in {"T", "t"}

    @property
    def ended(self) -> bool:
        """Whether its first thread has ended, be it that others run on."""
        return self.state in {"Z", "X"}

    @property
    def zombie(self) -> bool:
        """Dead, its parent has not waited for it yet; not so while another thread runs on."""
        return self.ended and len(self.threads) <= 1

    @property
    def command(self) -> str:
        """The command line, or the kernel's short name where there is none."""
        return " ".join(self.argv) or f"[{self.comm}]"


class Tree(Value, frozen=True):
    """A root process and all its descendants: the unit of a dump. Parents before children."""

    processes: tuple[Process, ...]

    @property
    def root(self) -> Process:
        """The process the tree hangs from."""
        return self.processes[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of all processes, the root's first."""
        return tuple(process.pid for process in self.processes)


class Condition(Value, frozen=True):
    """How one process of a job is after something failed.

    `cuda` is None where the driver does not tell or there was no CUDA, `cuda_before` what it had
    been; `differs`: something is not as it had been.
    """

    pid: int
    command: str
    exists: bool
    stopped: bool
    tracer: int
    cuda: CudaState | None
    cuda_before: CudaState | None
    differs: bool


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device file that a process still holds, by descriptor (`fd`) or by mapping (None).

    `number` is the device's, as st_rdev has it, where that was asked for.
    """

    pid: int
    fd: int | None
    path: str
    number: int = field(default=0, compare=False)


class Gpu(Value, frozen=True):
    """One GPU. `uuid` as NVML prints it, `GPU-` included; None: the driver does not say.

    `nvlinks` and `paths` have an entry for every GPU of the host, by its index, or none at all: how
    many NVLinks lead there, through switches or not, and what lies between on the PCI side, in the
    words of `nvidia-smi topo -m`.
    """

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_free: int
    bus_id: str
    compute_capability: str = ""
    mig: bool | None = None
    persistence: bool | None = None
    numa: int | None = None
    nvlinks: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()


class GpuUse(Value, frozen=True):
    """How many bytes one process holds on one GPU, as NVML counts them."""

    pid: int
    uuid: str
    bytes: int


class GpuPlace(Value, frozen=True):
    """Where a GPU of an image goes on a host: `new`, or nowhere.

    `how` that was found: it is the same, it was asked for, or it was planned. `part` is what the
    job had to do with it: used (then `need` bytes must be free), seen or spare. `trouble` says why
    it cannot be, "" if it can.
    """

    old: Gpu
    new: Gpu | None
    how: str = ""
    part: str = "used"
    need: int = 0
    trouble: str = ""


class NvidiaFacts(Value, frozen=True):
    """The NVIDIA driver of a host and its GPUs, in NVML's order.

    `module` is the version of the loaded kernel module and `flavour` open or proprietary, `library`
    the version of the libraries that programs started now will get; all "" if that is not known.
    """

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    module: str = ""
    flavour: str = ""
    library: str = ""


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A dotted version; compares by its numbers, prints as it was given."""

    text: str
    numbers: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the leading dotted numbers of `text`."""
        found = re.match(r"\d+(\.\d+)*", self.text)
        parts = tuple(int(part) for part in found.group().split(".")) if found else ()
        object.__setattr__(self, "numbers", parts)

    def __str__(self) -> str:
        """Return the text as given."""
        return self.text

    def __lt__(self, other: Version) -> bool:
        """Compare number by number, a missing one counting as zero."""
        width = max(len(self.numbers), len(other.numbers))
        return self._padded(width) < other._padded(width)

    def __eq__(self, other: object) -> bool:
        """Two versions are equal when their numbers are."""
        if not isinstance(other, Version):
            return NotImplemented
        width = max(len(self.numbers), len(other.numbers))
        return self._padded(width) == other._padded(width)

    def __hash__(self) -> int:
        """Hash the numbers without trailing zeros, in step with equality."""
        numbers = self.numbers
        while numbers and numbers[-1] == 0:
            numbers = numbers[:-1]
        return hash(numbers)

    def _padded(self, width: int) -> tuple[int, ...]:
        return self.numbers + (0,) * (width - len(self.numbers))


class HostFacts(Value, frozen=True):
    """What a restore compares about a host, and what it has room for.

    `memory_available` counts a cgroup limit; `missing_capabilities` are those a dump or a
    restore needs and this process lacks. `only_own` tells that it lacks CAP_SYS_RESOURCE, without
    which nobody reads the limits of a process of another user; `ptrace_scope` is Yama's, 0 without.
    `huge_pages` is the mode of
    transparent ones, `huge_pages_free` the bytes left in the pools of the others. `addresses` are
    those by which other hosts can reach this one; none: unknown.
    """

    hostname: str
    kernel: str
    boot_id: str
    arch: str
    libc: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    cpu_count: int
    memory_total: int
    memory_available: int
    huge_pages: str
    euid: int
    missing_capabilities: tuple[str, ...] = ()
    only_own: bool = False
    ptrace_scope: int = 0
    huge_pages_free: int = 0
    time_namespaces: bool = True
    addresses: tuple[str, ...] = ()


class Owner(Value, frozen=True):
    """The name that a number has on a host; `kind` is user or group, `name` "" if it has none."""

    kind: str
    number: int
    name: str


class Carriage(StrEnum):
    """Why an image carries a file.

    NEEDED: CRIU or the job's memory cannot do without it. WRITTEN: it is the job's own work.
    INCLUDED: the user has asked for it.
    """

    NEEDED = "needed"
    WRITTEN = "written"
    INCLUDED = "included"


class CarriedFile(Value, frozen=True):
    """A file whose bytes are in an image.

    `names` are those it has in its folder, `link` is the one under which CRIU looks for it at a
    restore, "" if it is one of `names`. `extents` are offset and length of what is no hole, and
    `digest` is of these bytes. `exact`: the job needs just these bytes; of another file it is
    enough that it is there. `memory`: it ends with its host.
    """

    names: tuple[str, ...]
    link: str
    device: int
    inode: int
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    extents: tuple[tuple[int, int], ...] = ()
    digest: str = ""
    exact: bool = True
    memory: bool = True
    why: Carriage = Carriage.NEEDED

    @property
    def path(self) -> str:
        """A name of it: one of its own, if it has any."""
        return self.names[0] if self.names else self.link

    @property
    def bytes(self) -> int:
        """How many bytes of it are in the image."""
        return sum(length for _, length in self.extents)


class Finding(Value, frozen=True):
    """One fact that stops or endangers an operation.

    `id` is stable and may be used in scripts, `object` names the descriptor, path, gate or
    address meant, `reason` says why in one sentence, `remedy` what to do about it.
    """

    id: str
    severity: Severity
    object: str
    reason: str
    remedy: str
    pid: int | None = None

    @property
    def blocks(self) -> bool:
        """Whether this finding stops the operation."""
        return self.severity is Severity.BLOCKER


class Attempt(Value, frozen=True):
    """One try to have a job run again: from `image`, or from its beginning if that is "".

    `created` is when the image was made, "" if it could not be read. `outcome` is restored, started
    or the name of the error that it ended with, which the rest tells of.
    """

    image: str
    created: str
    outcome: str
    exit_code: int = 0
    message: str = ""
    findings: tuple[Finding, ...] = ()


class Lost(Value, frozen=True):
    """Seconds of a job, by the clocks of wall and host; None where that is not known.

    `since_image` is the time since its image was made: work of it is in no image. `before_image` is
    how long it had run until then: a start from the beginning does that again, too.
    """

    since_image: float | None = None
    before_image: float | None = None


def blocker(id_: str, thing: str, reason: str, remedy: str, pid: int | None = None) -> Finding:
    """Return a finding that stops the operation; `thing` is its object."""
    return Finding(id_, Severity.BLOCKER, thing, reason, remedy, pid)


def warning(id_: str, thing: str, reason: str, remedy: str, pid: int | None = None) -> Finding:
    """Return a finding that does not stop anything; `thing` is its object."""
    return Finding(id_, Severity.WARNING, thing, reason, remedy, pid)
