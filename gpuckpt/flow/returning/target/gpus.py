"""Where the GPUs of an image go on a host, and which of them have too little memory free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.gpu.memory import memory_need
from gpuckpt.image.gpuplan import gpu_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.image.gpuplan import GpuPlan
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import NvidiaFacts


def planned(
    manifest: Manifest, nvidia: NvidiaFacts | None, asked: tuple[tuple[str, str], ...] = ()
) -> GpuPlan:
    """Find a place for every GPU of the image, as --gpu-map `asked` or as is best."""
    uses = manifest.nvidia.uses if manifest.nvidia is not None else ()
    return gpu_plan(manifest, nvidia, asked, memory_need(uses, {}))


def short(
    manifest: Manifest,
    nvidia: NvidiaFacts | None,
    plan: GpuPlan,
    holders: Callable[[str], str],
) -> dict[str, tuple[int, str]]:
    """Return the GPUs without enough free memory: what is needed, and who holds what there."""
    if manifest.nvidia is None or nvidia is None or not manifest.nvidia.uses:
        return {}
    need = memory_need(manifest.nvidia.uses, plan.map)
    return {
        gpu.uuid: (need[gpu.uuid], holders(gpu.uuid))
        for gpu in nvidia.gpus
        if gpu.memory_free < need.get(gpu.uuid, 0)
    }
