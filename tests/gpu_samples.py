"""Hosts full of GPUs as they are built, and images of jobs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuckpt.model import CudaState, Gpu, GpuUse, NvidiaFacts
from tests import image_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuckpt.image.manifest import Manifest

GIB = 1 << 30


def uuid(host: str, index: int) -> str:
    """Return a UUID that tells host and index; hosts are named in hex."""
    return f"GPU-{host * 2:0>4}{index:04x}-0000-4000-8000-{index:012x}"


def gpu(host: str, index: int, **changes: Any) -> Gpu:
    fields = {
        "name": "NVIDIA H200",
        "memory_total": 140 * GIB,
        "memory_free": 139 * GIB,
        "bus_id": f"00000000:{index + 16:02X}:00.0",
        "compute_capability": "9.0",
        "mig": False,
        "persistence": True,
    }
    return Gpu(index=index, uuid=uuid(host, index), **(fields | changes))


def switched(host: str = "a", count: int = 8) -> tuple[Gpu, ...]:
    """Eight H200 behind NVSwitches: every one has 18 links to all others; two sockets."""
    half = max(1, count // 2)
    return tuple(
        gpu(
            host,
            i,
            numa=i // half,
            nvlinks=tuple(0 if i == k else 18 for k in range(count)),
            paths=tuple(_way(i, k, i // half == k // half) for k in range(count)),
        )
        for i in range(count)
    )


def halves(host: str = "b", left: Sequence[int] = (0, 1, 2, 3), count: int = 8) -> tuple[Gpu, ...]:
    """Cards without NVLink on two sockets; `left` hang from node 0."""
    return tuple(
        gpu(
            host,
            i,
            name="NVIDIA L40S",
            numa=int(i not in left),
            paths=tuple(_way(i, k, (i in left) == (k in left)) for k in range(count)),
        )
        for i in range(count)
    )


def bridged(host: str, pairs: Iterable[tuple[int, int]]) -> tuple[Gpu, ...]:
    """PCIe cards of which two each are joined by an NVLink bridge; no NUMA nodes are told."""
    partner = {a: b for one, other in pairs for a, b in ((one, other), (other, one))}
    count = len(partner)
    return tuple(
        gpu(
            host,
            i,
            name="NVIDIA H100 NVL",
            nvlinks=tuple(12 if partner[i] == k else 0 for k in range(count)),
            paths=tuple(_way(i, k, near=False) for k in range(count)),
        )
        for i in range(count)
    )


def _way(one: int, other: int, near: bool) -> str:
    if one == other:
        return ""
    return "NODE" if near else "SYS"


def nvidia(gpus: Sequence[Gpu], driver: str = "580.159.04") -> NvidiaFacts:
    return NvidiaFacts(driver, "13.0", tuple(gpus))


def image(
    gpus: Sequence[Gpu],
    uses: Iterable[tuple[int, int]],
    visible: dict[int, tuple[int, ...]] | None = None,
    held: int = 10 * GIB,
) -> Manifest:
    """Return the image of a job: `uses` are (process, GPU), `visible` what a process could see."""
    listed = [(1000 + process, index) for process, index in uses]
    pids = sorted({1000, *(pid for pid, _ in listed)})
    limits = {1000 + process: indexes for process, indexes in (visible or {}).items()}
    tree = tuple(
        msgspec.structs.replace(
            image_samples.process(pid, 1 if pid == 1000 else 1000),
            cuda=CudaState.RUNNING,
            visible=tuple(gpus[i].uuid for i in limits[pid]) if pid in limits else None,
        )
        for pid in pids
    )
    record = image_samples.manifest().nvidia
    assert record is not None
    held_now = tuple(GpuUse(pid, gpus[index].uuid, held) for pid, index in listed)
    record = msgspec.structs.replace(record, gpus=tuple(gpus), uses=held_now)
    return image_samples.manifest(nvidia=record, tree=tree, ids=tuple(pids))


def ranks(count: int) -> list[tuple[int, int]]:
    """One process per GPU."""
    return [(number, number) for number in range(count)]
