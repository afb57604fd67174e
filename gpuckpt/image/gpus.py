"""Comparing the GPUs of an image with a host's, and pairing them up.

The driver restores a process only onto a full permutation of the GPUs it saw, so all GPUs of
the host are recorded and compared, not only those in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Gpu, NvidiaFacts


def gpu_map(manifest: Manifest, nvidia: NvidiaFacts | None) -> dict[str, str]:
    """Return old UUID to new for every recorded GPU; empty if the same GPUs are here.

    A GPU that is still here is paired with itself. The others are paired in their order, each
    with the first free GPU of its own model if there is one.
    """
    if manifest.nvidia is None or nvidia is None:
        return {}
    pairs = _pairs(manifest.nvidia.gpus, nvidia.gpus)
    if all(old.uuid == new.uuid for old, new in pairs):
        return {}
    return {old.uuid: new.uuid for old, new in pairs}


def gpu_gates(manifest: Manifest, nvidia: NvidiaFacts | None) -> Iterator[Finding]:
    """Yield what of the driver and the GPUs does not match the image."""
    old = manifest.nvidia
    if old is None:
        return
    if nvidia is None:
        yield blocker(
            "gate-driver",
            "NVIDIA driver",
            f"The job uses GPUs with driver {old.driver}, this host has no NVIDIA driver.",
            f"Restore on a host with driver {old.driver}.",
        )
        return
    if old.driver != nvidia.driver:
        yield blocker(
            "gate-driver",
            "NVIDIA driver",
            f"The image is from driver {old.driver}, this host has {nvidia.driver}.",
            f"Install driver {old.driver}: no other is known to restore what it saved.",
        )
    if old.flavour and nvidia.flavour and old.flavour != nvidia.flavour:
        yield warning(
            "gate-driver-flavour",
            "NVIDIA driver",
            f"The image is from the {old.flavour} kernel modules, this host has the "
            f"{nvidia.flavour} ones of the same driver.",
            "Not known to do harm; try it on a job that can be lost first.",
        )
    yield from _mig(nvidia.gpus)
    if len(old.gpus) != len(nvidia.gpus):
        yield blocker(
            "gate-gpu-count",
            "GPUs",
            f"The image is from a host with {len(old.gpus)} GPUs, this one has {len(nvidia.gpus)}.",
            "Restore on a host with as many, or override with --force-gate gate-gpu-count if "
            "the job saw only GPUs that are here.",
        )
    for before, now in _pairs(old.gpus, nvidia.gpus):
        yield from _pair(before, now)


def _pairs(old: tuple[Gpu, ...], new: tuple[Gpu, ...]) -> list[tuple[Gpu, Gpu]]:
    here = {gpu.uuid: gpu for gpu in new}
    partner = {gpu.uuid: here.pop(gpu.uuid) for gpu in old if gpu.uuid in here}
    free = [gpu for gpu in new if gpu.uuid in here]
    for gpu in old:
        if gpu.uuid not in partner and free:
            same = next((one for one in free if one.name == gpu.name), free[0])
            free.remove(same)
            partner[gpu.uuid] = same
    return [(gpu, partner[gpu.uuid]) for gpu in old if gpu.uuid in partner]


def _pair(old: Gpu, new: Gpu) -> Iterator[Finding]:
    place = f"GPU {new.index} {new.uuid}"
    if (old.name, old.compute_capability) != (new.name, new.compute_capability):
        yield blocker(
            "gate-gpu-model",
            place,
            f"GPU {old.index} was {_model(old)}, GPU {new.index} here is {_model(new)}.",
            f"Restore on a host with {old.name}.",
        )
    elif new.memory_total < old.memory_total:
        yield blocker(
            "gate-gpu-memory",
            place,
            f"GPU {old.index} had {old.memory_total} bytes of memory, GPU {new.index} here has "
            f"{new.memory_total}.",
            "Restore on GPUs with as much, or override with --force-gate gate-gpu-memory if "
            "what the job uses fits.",
        )
    if old.bus_id != new.bus_id:
        yield warning(
            "gate-gpu-bus",
            place,
            f"The job knows GPU {old.index} by the bus id {old.bus_id}, here it is {new.bus_id}.",
            "Nothing to do, unless the job looks GPUs up by bus id, as NCCL does for new "
            "communicators.",
        )


def _mig(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    on = ", ".join(str(gpu.index) for gpu in gpus if gpu.mig)
    if on:
        yield blocker(
            "gate-mig",
            f"GPU {on}",
            f"MIG is on for GPU {on} of this host.",
            "Turn MIG off (nvidia-smi -i INDEX -mig 0): the driver cannot restore onto it.",
        )


def _model(gpu: Gpu) -> str:
    known = gpu.compute_capability
    return f"{gpu.name} (compute capability {known})" if known else gpu.name
