"""manifest.json: what an image holds, where it came from and what a restore needs.

The wire types of format 1, their encoding, and the one place that decides whether this
gpuckpt may use an image at all. FORMAT.md describes every field.
"""

from __future__ import annotations

import msgspec

from gpuckpt.model import Gpu, GpuUse, Receipt, TcpPolicy

FORMAT = "gpuckpt-image-1"
KNOWN_NEEDS = frozenset({"criu-stream", "cuda-in-pages"})
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


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the dumped tree; `cuda` is its driver state before the dump."""

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
    cuda: str


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file outside the image that the restore expects unchanged (from CRIU's files.img)."""

    path: str
    size: int | None
    mode: int | None
    build_id: str
    mtime_ns: int | None
    flags: int = 0


class ListenerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A port the restored tree will bind."""

    protocol: str
    address: str
    port: int


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What the tree uses that is not in the image."""

    files: tuple[FileRecord, ...]
    listeners: tuple[ListenerRecord, ...]
    terminals: tuple[str, ...]


class DumpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore must repeat to CRIU."""

    tcp: TcpPolicy
    file_locks: bool
    shell_job: bool
    link_remap: bool
    leave_running: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all CRIU images as CRIU wrote them and as stored, and of memory pages alone."""

    raw: int
    stored: int
    pages: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag=FORMAT):
    """The whole of manifest.json, format 1."""

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
