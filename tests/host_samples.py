"""Hosts as they say of themselves that they are, for judging images elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from gpuckpt.flow.returning.target import savedhost
from gpuckpt.flow.returning.target.savedhost import Rights, SavedHost
from gpuckpt.model import HostFacts, NvidiaFacts
from tests import gpu_samples, image_samples

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
RECORD = image_samples.host()
HOST = HostFacts(
    hostname="node2",
    kernel=RECORD.kernel,
    boot_id="other",
    arch=RECORD.arch,
    libc=RECORD.libc,
    cpu_model=RECORD.cpu_model,
    cpu_flags=RECORD.cpu_flags,
    cpu_count=8,
    memory_total=256 * GIB,
    memory_available=200 * GIB,
    huge_pages="always",
    euid=0,
    addresses=("10.0.0.2",),
)
EIGHT = gpu_samples.nvidia(gpu_samples.switched("b"))


def saved(name: str = "node2", nvidia: NvidiaFacts | None = EIGHT, **host: Any) -> SavedHost:
    """Return the facts of a host on which a job of the samples can come back."""
    return SavedHost(
        schema=savedhost.SCHEMA,
        version=savedhost.VERSION,
        gpuckpt="0.1.0",
        taken="2026-01-02T03:04:05Z",
        host=replace(HOST, hostname=name, **host),
        nvidia=nvidia,
        criu="4.2.1",
        no_criu=None,
        rights=Rights(cgroup="/", label="", permitted=0xFF, bounding=0xFF),
        no_programs="",
        images={},
    )


def write(path: Path, what: SavedHost | dict[str, Any]) -> Path:
    """Write such a file, sound or not."""
    given = savedhost.plain(what) if isinstance(what, SavedHost) else what
    path.write_bytes(msgspec.json.encode(given))
    return path
