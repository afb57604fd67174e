"""Images for tests, written by hand from FORMAT.md: a second, simple implementation."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard
from blake3 import blake3

from gpuckpt.image import manifest as m
from gpuckpt.image.outside import Outside
from gpuckpt.image.stage import Stage
from gpuckpt.model import Gpu, GpuUse, TcpPolicy
from gpuckpt.timing import Phase, Receipt

if TYPE_CHECKING:
    from pathlib import Path

FRAME = 4 << 20
GPUS = tuple(
    Gpu(
        index=index,
        uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000",
        name="NVIDIA H200",
        memory_total=150754820096,
        memory_free=150000000000,
        bus_id=f"00000000:{index:02x}:00.0",
        compute_capability="9.0",
        mig=False,
        persistence=True,
    )
    for index in range(2)
)


def stored(raw: bytes, frame: int = FRAME, level: int = 1) -> tuple[bytes, bytes]:
    """Return the frames of a stored file, and its table, as FORMAT.md describes them."""
    frames = entries = b""
    count = 0
    for start in range(0, len(raw), frame):
        piece = raw[start : start + frame]
        packed = zstandard.ZstdCompressor(level=level).compress(piece)
        frames += packed
        entries += struct.pack("<II", len(packed), len(piece)) + blake3(piece).digest()
        entries += blake3(packed).digest()[:16]
        count += 1
    payload = b"gpckptFT" + struct.pack("<II", 2, count) + entries
    return frames, struct.pack("<II", 0x184D2A5E, len(payload)) + payload


def entry(name: str, raw: bytes, frames: bytes, table: bytes) -> m.FileEntry:
    return m.FileEntry(
        name=name,
        raw_size=len(raw),
        stored_size=len(frames + table),
        frames=(len(table) - 24) // 56,
        table_blake3=blake3(table).hexdigest(),
    )


def write_file(folder: Path, name: str, raw: bytes, frame: int = FRAME) -> m.FileEntry:
    """Store one CRIU image in `folder`."""
    frames, table = stored(raw, frame)
    (folder / f"{name}.zst").write_bytes(frames + table)
    (folder / f"{name}.zst").chmod(0o600)
    return entry(name, raw, frames, table)


def write_image(final: Path, files: dict[str, bytes], frame: int = FRAME, **changes: Any) -> Path:
    """Write a whole image with these CRIU images in it."""
    stage = Stage.create(final)
    entries = tuple(write_file(stage.criu, name, raw, frame) for name, raw in files.items())
    stage.commit(manifest(files=entries, **changes))
    stage.close()
    return final


def seal(document: dict[str, Any]) -> bytes:
    """Return manifest.json for a document, whatever is in it, with the digest in its place."""
    document.pop("blake3", None)
    body = json.dumps(document, indent=2).removesuffix("\n}") + ',\n  "blake3": "'
    return f'{body}{blake3(body.encode()).hexdigest()}"\n}}\n'.encode()


def manifest(files: tuple[m.FileEntry, ...] = (), **changes: Any) -> m.Manifest:
    """Return a manifest in which everything is in order."""
    raw = sum(file.raw_size for file in files)
    whole = m.Manifest(
        needs=("criu-stream", "cuda-in-pages"),
        image_id="3f0c7a52-6f0e-4b66-9a55-2d6d6b3c0e11",
        created="2026-01-02T03:04:05Z",
        gpuckpt="0.1.0",
        criu="4.2.1",
        root_pid=1000,
        host=host(),
        nvidia=m.NvidiaRecord(
            driver="580.159.04",
            cuda="13.0",
            gpus=GPUS,
            uses=(GpuUse(pid=1000, uuid=GPUS[0].uuid, bytes=1 << 30),),
        ),
        tree=(process(1000, 1), process(1001, 1000)),
        ids=(1000, 1001),
        options=m.DumpOptions(
            tcp=TcpPolicy.NONE,
            file_locks=False,
            shell_job=False,
            link_remap=False,
            leave_running=False,
        ),
        outside=Outside(files=(), listeners=(), terminals=()),
        labels={"step": "7"},
        files=files,
        totals=m.Totals(raw=raw, stored=sum(file.stored_size for file in files), pages=0),
        receipt=Receipt("dump", "2026-01-02T03:04:00Z", 5.5, (Phase("lock", 0.0, 0.25),)),
    )
    return msgspec.structs.replace(whole, **changes)


def host(**changes: Any) -> m.HostRecord:
    record = m.HostRecord(
        hostname="node1",
        kernel="6.18.44",
        boot_id="b3c1f1f0-0000-4000-8000-000000000000",
        arch="x86_64",
        libc="glibc 2.36",
        cpu_model="Some CPU",
        cpu_flags=("avx", "avx2", "fpu", "sse2"),
        memory_total=1 << 38,
    )
    return msgspec.structs.replace(record, **changes)


def process(pid: int, ppid: int) -> m.ProcessRecord:
    return m.ProcessRecord(
        pid=pid,
        ppid=ppid,
        pgid=1000,
        sid=1000,
        start_time=123456,
        threads=(pid,),
        comm="python3",
        argv=("python3", "train.py"),
        exe="/usr/bin/python3.11",
        cwd="/home/u",
        uid=1000,
        gid=1000,
        cuda="running",
    )
