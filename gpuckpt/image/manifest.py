"""manifest.json: what an image holds, where it came from and what a restore needs.

The wire types of format 1, and whether this gpuckpt may use an image. FORMAT.md has every field.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from gpuckpt.errors import Bug, GpuckptError, ImageDamaged, ImageUnsupported
from gpuckpt.image import carried, needs, wire
from gpuckpt.image.frames import possible
from gpuckpt.image.names import check_name
from gpuckpt.image.outside import Outside
from gpuckpt.model import CarriedFile, CudaState, Gpu, GpuUse, Receipt, TcpPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = "gpuckpt-image-1"
LARGEST_MANIFEST = 64 << 20


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One CRIU image: its own name and size, and how it is stored (see FORMAT.md)."""

    name: str
    raw_size: int
    stored_size: int
    frames: int
    stored_blake3: str
    table_blake3: str


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The host the image was written on."""

    hostname: str
    kernel: str
    boot_id: str
    arch: str
    libc: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    memory_total: int


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag=FORMAT):
    """The whole of manifest.json, format 1.

    `identity` has the names of environment variables that tell the job where it was started,
    `carried` the files whose bytes are, in this order, in that stored file, `quiesced` who waits.
    """

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

    @property
    def cuda(self) -> dict[int, CudaState]:
        """The processes with CUDA in them, and the driver's state of each before the dump."""
        return {p.pid: p.cuda for p in self.tree if p.cuda != CudaState.NONE}


class _Peek(msgspec.Struct):
    format: str = ""


_ANY_FORMAT = re.compile(r"gpuckpt-image-[1-9][0-9]{0,8}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DIGEST_LENGTH = 64
_SEAL = b',\n  "blake3": "'
_END = b"\n}"
_LARGEST_PID = 1 << 22
_LARGEST_UID = (1 << 32) - 1
_LARGEST_CPU = _LARGEST_PORT = (1 << 16) - 1


def encode(manifest: Manifest) -> bytes:
    """Return manifest.json: indented JSON that ends with its own digest and a newline.

    Raises:
        Bug: decode would not take it, so it must never become an image.
    """
    try:
        plain = wire.escape(msgspec.to_builtins(manifest))
        data = _seal(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        back = decode(data)
    except (GpuckptError, msgspec.MsgspecError, UnicodeError) as why:
        raise Bug(f"the manifest could not be read back: {why}") from why
    if back != manifest:
        raise Bug("the manifest is not what it was after reading it back")
    return data


def decode(data: bytes) -> Manifest:
    """Return the manifest in `data`; entries of `needs` are not judged here.

    Raises:
        ImageUnsupported: its format is a newer one.
        ImageDamaged: a byte was changed, it is no JSON, misses fields, or holds what no
            manifest may hold.
    """
    if len(data) > LARGEST_MANIFEST:
        raise ImageDamaged(f"{len(data)} bytes are too many for a manifest")
    try:
        _check_format(msgspec.json.decode(data, type=_Peek).format)
        _check_seal(data)
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as why:
        raise ImageDamaged(f"the manifest cannot be read: {why}") from why
    plain = msgspec.to_builtins(manifest)
    found = next(wire.flaws(plain), None) or next(_flaws(manifest), None)
    if found:
        raise ImageDamaged(f"the manifest cannot be trusted: {found}")
    if wire.escaped(plain):
        manifest = msgspec.convert(wire.unescape(plain), Manifest)
    return manifest


def unknown_needs(manifest: Manifest) -> tuple[str, ...]:
    """Return what the image needs of a restore and this gpuckpt does not know."""
    return tuple(need for need in manifest.needs if need not in needs.KNOWN)


def _check_format(text: str) -> None:
    if text == FORMAT:
        return
    if _ANY_FORMAT.fullmatch(text):
        raise ImageUnsupported(f"the image has format {text}; this gpuckpt reads {FORMAT}")
    raise ImageDamaged("the manifest does not name a format of gpuckpt images")


def _seal(data: bytes) -> bytes:
    """Put the digest of all bytes before it into the last field."""
    body = data.removesuffix(_END) + _SEAL
    return body + blake3(body).hexdigest().encode() + b'"' + _END + b"\n"


def _check_seal(data: bytes) -> None:
    body = data[: -(_DIGEST_LENGTH + len(_END) + 2)]
    if not body.endswith(_SEAL) or _seal(body.removesuffix(_SEAL)) != data:
        raise ImageDamaged("the manifest does not have the digest it was written with")


def _flaws(manifest: Manifest) -> Iterator[str]:
    yield from _tree_flaws(manifest)
    names: set[str] = set()
    for entry in manifest.files:
        if entry.name in names:
            yield f"file {entry.name!a} is listed twice"
        names.add(entry.name)
        yield from _entry_flaws(entry)
    raw = sum(entry.raw_size for entry in manifest.files)
    stored = sum(entry.stored_size for entry in manifest.files)
    if (manifest.totals.raw, manifest.totals.stored) != (raw, stored):
        yield "its totals are not the sums of its files"
    yield from carried.flaws(manifest.carried, manifest.files, manifest.outside.folders)
    if manifest.totals.pages > raw:
        yield "its totals claim more bytes of pages than there are bytes"


def _tree_flaws(manifest: Manifest) -> Iterator[str]:
    pids = [process.pid for process in manifest.tree]
    if len(set(pids)) != len(pids):
        yield "a pid is listed twice"
    if not pids or pids[0] != manifest.root_pid:
        yield "its tree does not begin with its root"
    more = (n for process in manifest.tree for n in (*process.threads, process.host_pid))
    if min(pids, default=0) < 1 or max((*pids, *more, *manifest.ids), default=0) > _LARGEST_PID:
        yield "a number in it can be no pid"
    yield from (f"process {n} is not in its tree" for n in manifest.quiesced if n not in pids)
    for process in manifest.tree:
        if max(process.uid, process.gid) > _LARGEST_UID:
            yield f"process {process.pid} has an impossible owner"
        yield from _binding_flaws(process)
    for listener in manifest.outside.listeners:
        if listener.port > _LARGEST_PORT:
            yield f"{listener.port} is no port"


def _binding_flaws(process: ProcessRecord) -> Iterator[str]:
    for binding in process.bound:
        if not set(binding.threads) <= set(process.threads):
            yield f"process {process.pid} binds threads of another"
        if not 0 <= max(binding.cpus, default=-1) <= _LARGEST_CPU:
            yield f"process {process.pid} is bound to CPUs that cannot be"


def _entry_flaws(entry: FileEntry) -> Iterator[str]:
    try:
        check_name(entry.name)
    except ImageDamaged as why:
        yield why.message
    if not (_DIGEST.fullmatch(entry.stored_blake3) and _DIGEST.fullmatch(entry.table_blake3)):
        yield f"file {entry.name!a} has no BLAKE3 digests"
    if not possible(entry.frames, entry.raw_size, entry.stored_size):
        yield f"file {entry.name!a} has sizes that cannot be"
