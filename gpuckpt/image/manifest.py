"""What a manifest says: what an image holds, where it came from and what a restore needs.

The wire types of all formats; FORMAT.md has every field.
"""

from __future__ import annotations

import msgspec

from gpuckpt.image import needs
from gpuckpt.image.engine import Engine, TrackedRecord, WeightRecord
from gpuckpt.image.frames import TABLE_VERSION
from gpuckpt.image.outside import Outside
from gpuckpt.model import CarriedFile, CudaState, Gpu, GpuUse, Owner, TcpPolicy
from gpuckpt.timing import Receipt

FORMAT = "gpuckpt-image-2"


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One CRIU image: its own name and size, and how it is stored (see FORMAT.md).

    `stored_blake3` is what format 1 has in place of checks in the table.
    """

    name: str
    raw_size: int
    stored_size: int
    frames: int
    table_blake3: str
    stored_blake3: str = ""

    @property
    def table_version(self) -> int:
        """Which kind of frame table its stored file has."""
        return 1 if self.stored_blake3 else TABLE_VERSION


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The host the image was written on; `addresses` as HostFacts has them."""

    hostname: str
    kernel: str
    boot_id: str
    arch: str
    libc: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    memory_total: int
    addresses: tuple[str, ...] = ()


class NvidiaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The driver, all GPUs of the host in NVML's order, and who held how much on which."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    uses: tuple[GpuUse, ...]
    flavour: str = ""


class BindingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Threads of one process that may run on these CPUs only."""

    cpus: tuple[int, ...]
    threads: tuple[int, ...]


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the dumped tree; `cuda` is its driver state before the dump.

    `restore_thread` other than 0: it comes back stopped, and may run again only when the driver,
    working through this thread alone, has given it its GPU state back. `parent_death` is the signal
    that the root asked for at its parent's end, `host_pid` its pid outside of its pid namespace; 0:
    none. `visible`: UUIDs of the GPUs that CUDA_VISIBLE_DEVICES left it; None: all, or unknown.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    start_time: int
    threads: tuple[int, ...]
    comm: str
    argv: tuple[str, ...]
    exe: str
    cwd: str
    uid: int
    gid: int
    cuda: CudaState
    restore_thread: int = 0
    bound: tuple[BindingRecord, ...] = ()
    root: str = "/"
    cgroup: str = ""
    label: str = ""
    permitted: int = 0
    bounding: int = 0
    huge_pages: int = 0
    parent_death: int = 0
    host_pid: int = 0
    layout: tuple[int, ...] = ()
    clock: float = 0.0
    expired: tuple[int, ...] = ()
    visible: tuple[str, ...] | None = None


class StartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How the root's program was started, beside what `tree` says of it: for a cold start.

    `program` is the path that was executed, `umask` None if it is not known, `groups` the
    supplementary ones; `stdout` and `stderr` are the regular files that it had as these.
    """

    program: str = ""
    umask: int | None = None
    groups: tuple[int, ...] = ()
    stdout: str = ""
    stderr: str = ""


class DumpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore must repeat to CRIU.

    `tcp_by_itself`: nobody has asked for that `tcp`; `stand_ins`: for devices of forked children.
    """

    tcp: TcpPolicy
    file_locks: bool
    shell_job: bool
    link_remap: bool
    leave_running: bool
    external_unix: bool = False
    tcp_by_itself: bool = False
    stand_ins: bool = False


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all CRIU images as CRIU wrote them and as stored, and of memory pages alone."""

    raw: int
    stored: int
    pages: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of manifest.json, of any format that is read.

    `identity` has the names of environment variables that tell the job where it was started,
    `carried` the files whose bytes are, in this order, in that stored file, `quiesced` who waits,
    `start` how the root was started, None in older images. `models` are files of weights, `tracked`
    what the user wants unchanged.
    """

    format: str = FORMAT
    needs: tuple[str, ...]
    image_id: str
    created: str
    gpuckpt: str
    criu: str
    root_pid: int
    host: HostRecord
    nvidia: NvidiaRecord | None
    tree: tuple[ProcessRecord, ...]
    ids: tuple[int, ...]
    options: DumpOptions
    outside: Outside
    labels: dict[str, str]
    files: tuple[FileEntry, ...]
    totals: Totals
    receipt: Receipt
    identity: tuple[str, ...] = ()
    carried: tuple[CarriedFile, ...] = ()
    quiesced: tuple[int, ...] = ()
    owners: tuple[Owner, ...] = ()
    start: StartRecord | None = None
    engine: Engine = Engine()
    models: tuple[WeightRecord, ...] = ()
    tracked: tuple[TrackedRecord, ...] = ()

    @property
    def cuda(self) -> dict[int, CudaState]:
        """The processes with CUDA in them, and the driver's state of each before the dump."""
        return {p.pid: p.cuda for p in self.tree if p.cuda != CudaState.NONE}


def unknown_needs(manifest: Manifest) -> tuple[str, ...]:
    """Return what the image needs of a restore and this gpuckpt does not know."""
    return tuple(need for need in manifest.needs if need not in needs.KNOWN)
