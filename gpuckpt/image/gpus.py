"""The gates of the GPUs: driver, count, models, memory, and what a map of GPUs asks for.

The driver restores a process only onto a full permutation of the GPUs it saw, so all GPUs of
the host are recorded and compared, not only those in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.image.gpuplan import seen_gpus
from gpuckpt.model import Version, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.gpuplan import GpuPlan
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Gpu, GpuPlace, NvidiaFacts

# the first driver that takes pairs of GPUs at a restore
_MAPPING_DRIVER: Final = Version("580")
_FORCE_COUNT: Final = "--force-gate gate-gpu-count"


def gpu_gates(manifest: Manifest, nvidia: NvidiaFacts | None, plan: GpuPlan) -> Iterator[Finding]:
    """Yield what of the driver and the GPUs does not match the image."""
    yield from plan.mistakes
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
    yield from _driver(old.driver, nvidia)
    if old.flavour and nvidia.flavour and old.flavour != nvidia.flavour:
        yield warning(
            "gate-driver-flavour",
            "NVIDIA driver",
            f"The image is from the {old.flavour} kernel modules, this host has the "
            f"{nvidia.flavour} ones of the same driver.",
            "Not known to do harm; try it on a job that can be lost first.",
        )
    yield from _mig(nvidia.gpus)
    yield from _count(manifest, plan)
    yield from _remap(nvidia, plan)
    for place in plan.places:
        yield from _place(place)
    yield from _stale(manifest, plan)


def _driver(old: str, nvidia: NvidiaFacts) -> Iterator[Finding]:
    """Older or newer, by the last digit or the first: nobody promises anything between versions."""
    here = nvidia.driver or "one that does not work"
    if nvidia.library and nvidia.library != nvidia.driver:  # an upgrade that waits for a reboot
        here += f" loaded and the libraries of {nvidia.library}"
    if here != old:
        yield blocker(
            "gate-driver",
            "NVIDIA driver",
            f"The image is from driver {old}, this host has {here}.",
            f"Install driver {old}: no other is known to restore what it saved. "
            "--force-gate gate-driver tries it all the same; the job's libraries of the old driver "
            "have to be there.",
        )


def _count(manifest: Manifest, plan: GpuPlan) -> Iterator[Finding]:
    """Another number of GPUs: the driver's rule is known for the same number only."""
    homeless = [one for one in plan.places if one.new is None]
    here = len(plan.places) - len(homeless) + len(plan.spare)
    if not homeless and not plan.spare:
        return
    reason = f"The image is from a host with {len(plan.places)} GPUs, this one has {here}."
    needed = [one for one in homeless if one.part == "used"]
    if needed:
        numbers = ", ".join(str(one.old.index) for one in needed)
        yield blocker(
            "gate-gpu-missing",
            "GPUs",
            f"{reason} None is left for GPU {numbers}, which the job used.",
            "Restore on a host with as many.",
        )
        return
    yield blocker("gate-gpu-count", "GPUs", f"{reason} {_unproved(manifest, plan)}", _remedy(plan))


def _unproved(manifest: Manifest, plan: GpuPlan) -> str:
    """Say what is known of the driver's rule, and what of this job speaks for a try."""
    if plan.spare:
        return "Whether the driver takes a map to only some of the GPUs here is not known."
    seen = seen_gpus(manifest)
    count = len(manifest.nvidia.gpus) if manifest.nvidia else 0
    if len(seen) < count:
        job = f"The job saw only {len(seen)} of them (CUDA_VISIBLE_DEVICES)"
    else:
        job = "The job saw all of them, though it used fewer"
    return f"{job}; whether the driver then takes a map of these alone is not known."


def _remedy(plan: GpuPlan) -> str:
    named = "those of the image" if plan.spare else "the GPUs that there is room for"
    return (
        f"Restore on a host with as many, or try it with {_FORCE_COUNT}: the map then names only "
        f"{named}, and a map that the driver refuses costs nothing."
    )


def _remap(nvidia: NvidiaFacts, plan: GpuPlan) -> Iterator[Finding]:
    """Before 580 a restore takes no map: it goes by the order of the GPUs."""
    if plan.map and Version(nvidia.driver) < _MAPPING_DRIVER:
        yield blocker(
            "gate-gpu-remap",
            "NVIDIA driver",
            f"The job has to come back on other GPUs or in another order, and driver "
            f"{nvidia.driver} brings it back on the same ones only.",
            f"Restore it where it was, or use driver {_MAPPING_DRIVER} or newer for dump and "
            "restore.",
        )


def _stale(manifest: Manifest, plan: GpuPlan) -> Iterator[Finding]:
    """What a process is on moves with it; what it starts later reads the old list."""
    moved = {one.old.uuid for one in plan.places if one.new and one.old.uuid != one.new.uuid}
    for process in manifest.tree:
        if moved & set(process.visible or ()):
            yield warning(
                "gpu-visible",
                f"pid {process.pid}",
                f"Process {process.pid} was left some GPUs by CUDA_VISIBLE_DEVICES, and comes back "
                "on others; programs that it starts later will read the old list.",
                "Nothing to do, unless it starts programs of its own on the GPU.",
                process.pid,
            )


def _place(place: GpuPlace) -> Iterator[Finding]:
    old, new = place.old, place.new
    if new is None:
        return
    name = f"GPU {new.index} {new.uuid}"
    if (old.name, old.compute_capability) != (new.name, new.compute_capability):
        yield blocker(
            "gate-gpu-model",
            name,
            f"GPU {old.index} was {_model(old)}, GPU {new.index} here is {_model(new)}.",
            f"Restore on a host with {old.name}: what the job has compiled and laid out is for "
            "that model. --force-gate gate-gpu-model leaves it to the driver to refuse.",
        )
    elif new.memory_total < old.memory_total:
        yield blocker(
            "gate-gpu-memory",
            name,
            f"GPU {old.index} had {old.memory_total} bytes of memory, GPU {new.index} here has "
            f"{new.memory_total}.",
            "Restore on GPUs with as much, or override with --force-gate gate-gpu-memory if "
            "what the job uses fits.",
        )
    if old.bus_id != new.bus_id and place.part != "spare":
        yield warning(
            "gate-gpu-bus",
            name,
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
