"""Where the GPUs of an image go on a host: the same ones, as asked, or as a plan finds best.

The driver takes no part of a map: whatever a process saw at its dump needs a place, used or not.
So all GPUs of the old host are placed, those first that the job has used or could see.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.image.gpunames import wishes
from gpuckpt.image.gpupairs import Costs, cheapest
from gpuckpt.model import GpuPlace
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Gpu, NvidiaFacts

# One NVLink is nearer than any way over PCI; more of them are nearer still.
_LINKED: Final = 20
_NEAR: Final = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
# How much worse one thing is than the next: each beats all that can come together of those below.
_ORDER, _NODE, _TIE, _SHORT, _MISFIT, _NOWHERE = 1, 10**3, 10**6, 10**12, 10**14, 10**18
_IMPORTANT: Final = {"used": 16, "seen": 4, "spare": 1}
_LITTLE_FREE: Final = "too little of it is free"


class GpuPlan(Value, frozen=True):
    """The place of every GPU of an image; `spare` are those of the host that none goes to.

    `mistakes` tells what of --gpu-map makes no sense.
    """

    places: tuple[GpuPlace, ...] = ()
    spare: tuple[Gpu, ...] = ()
    mistakes: tuple[Finding, ...] = ()

    @property
    def map(self) -> dict[str, str]:
        """Old UUID to new for every GPU; empty if the same GPUs are here in the same order.

        Without a map the driver goes by the order of the GPUs.
        """
        pairs = [(one.old, one.new) for one in self.places if one.new is not None]
        whole = len(pairs) == len(self.places) and not self.spare
        if whole and all((a.uuid, a.index) == (b.uuid, b.index) for a, b in pairs):
            return {}
        return {old.uuid: new.uuid for old, new in pairs}

    def renewed(self, nvidia: NvidiaFacts | None) -> GpuPlan:
        """Return the same plan with what is free now."""
        now = {gpu.uuid: gpu for gpu in nvidia.gpus} if nvidia is not None else {}
        places = (
            _judged(replace(one, new=now.get(one.new.uuid, one.new))) if one.new else one
            for one in self.places
        )
        return replace(self, places=tuple(places))


def gpu_plan(
    manifest: Manifest,
    nvidia: NvidiaFacts | None,
    asked: Iterable[tuple[str, str]] = (),
    need: Mapping[str, int] | None = None,
) -> GpuPlan:
    """Find a place for every GPU of the image.

    `asked` are pairs of names, of the image's and of this host's GPUs. `need` are the bytes that
    must be free for each of the image's GPUs. A GPU that is still here stays, unless asked
    otherwise.
    """
    # one without a UUID has fallen off the bus
    old = tuple(gpu for gpu in (manifest.nvidia.gpus if manifest.nvidia else ()) if gpu.uuid)
    new = tuple(gpu for gpu in (nvidia.gpus if nvidia else ()) if gpu.uuid)
    wanted, mistakes = wishes(asked, old, new)
    parts = _parts(manifest)
    need = need or {}
    places = [GpuPlace(one, None, part=parts[one.uuid], need=need.get(one.uuid, 0)) for one in old]
    fixed = _fixed(old, new, wanted)
    found = cheapest(_costs(manifest, places, new), fixed)
    told = {one.uuid for one, _ in wanted}
    placed = []
    for number, one in enumerate(places):
        there = new[found[number]] if found[number] < len(new) else None
        placed.append(_judged(replace(one, new=there, how=_how(one.old, there, told))))
    taken = set(found[: len(old)])
    spare = tuple(gpu for number, gpu in enumerate(new) if number not in taken)
    return GpuPlan(tuple(placed), spare, tuple(mistakes))


def _how(old: Gpu, new: Gpu | None, asked: set[str]) -> str:
    if new is None:
        return ""
    if old.uuid in asked:
        return "asked"
    return "same" if old.uuid == new.uuid else "planned"


def _fixed(
    old: tuple[Gpu, ...], new: tuple[Gpu, ...], wanted: list[tuple[Gpu, Gpu]]
) -> dict[int, int]:
    """Return what is not for the search to find: the places asked for, then those that are kept."""
    fixed = {old.index(one): new.index(other) for one, other in wanted}
    here = {gpu.uuid: number for number, gpu in enumerate(new)}
    for number, gpu in enumerate(old):
        column = here.get(gpu.uuid)
        if number not in fixed and column is not None and column not in fixed.values():
            fixed[number] = column
    return fixed


def _parts(manifest: Manifest) -> dict[str, str]:
    """Say of each GPU what the job had to do with it."""
    nvidia = manifest.nvidia
    if nvidia is None:
        return {}
    used = {use.uuid for use in nvidia.uses}
    seen = seen_gpus(manifest)
    return {
        gpu.uuid: "used" if gpu.uuid in used else "seen" if gpu.uuid in seen else "spare"
        for gpu in nvidia.gpus
    }


def seen_gpus(manifest: Manifest) -> set[str]:
    """Return the GPUs that any CUDA process could see, used ones included."""
    nvidia = manifest.nvidia
    if nvidia is None:
        return set()
    every = tuple(gpu.uuid for gpu in nvidia.gpus)
    cuda = manifest.cuda
    limits = [one.visible for one in manifest.tree if one.pid in cuda]
    seen = {uuid for one in limits for uuid in (every if one is None else one)}
    return seen | {use.uuid for use in nvidia.uses}


def _judged(place: GpuPlace) -> GpuPlace:
    """Say what is wrong with a place, in a few words."""
    return replace(place, trouble=_trouble(place))


def _trouble(place: GpuPlace) -> str:
    old, new = place.old, place.new
    if new is None:
        return "no GPU is left for it"
    if (old.name, old.compute_capability) != (new.name, new.compute_capability):
        return f"another model: {new.name or 'unknown'}"
    if new.mig:
        return "in MIG mode"
    if new.memory_total < old.memory_total:
        return "has less memory"
    return _LITTLE_FREE if new.memory_free < place.need else ""


def _costs(manifest: Manifest, places: list[GpuPlace], new: tuple[Gpu, ...]) -> Costs:
    """Weigh everything; rows and columns beyond the GPUs there are stand for none at all."""
    old = [one.old for one in places]
    size = max(len(old), len(new))
    alone = [
        [
            _alone(places[i], new[a] if a < len(new) else None, abs(i - a)) if i < len(old) else 0
            for a in range(size)
        ]
        for i in range(size)
    ]
    return Costs(alone, _ties(manifest, old, size), _nearness(old, size), _nearness(new, size))


def _alone(place: GpuPlace, new: Gpu | None, moved: int) -> int:
    """Return the cost of one GPU's place, whatever becomes of the others."""
    weight = _IMPORTANT[place.part]
    if new is None:
        return weight * _NOWHERE
    trouble = _trouble(replace(place, new=new))
    misfit = trouble not in {"", _LITTLE_FREE}
    nodes = {place.old.numa, new.numa}
    elsewhere = place.part == "used" and None not in nodes and len(nodes) > 1
    fits = (trouble == _LITTLE_FREE) * _SHORT + elsewhere * _NODE + moved * _ORDER
    return weight * misfit * _MISFIT + fits


def _ties(manifest: Manifest, old: list[Gpu], size: int) -> list[dict[int, int]]:
    """Return which GPUs work together: those of one process closely, those of one job as well."""
    ties: list[dict[int, int]] = [{} for _ in range(size)]
    uses = manifest.nvidia.uses if manifest.nvidia is not None else ()
    number = {gpu.uuid: i for i, gpu in enumerate(old)}
    job = {number[use.uuid] for use in uses if use.uuid in number}
    if not job:  # NVML does not tell
        job = {number[uuid] for uuid in seen_gpus(manifest) if uuid in number}
    owners: dict[int, set[int]] = {}
    for use in uses:
        if use.uuid in number:
            owners.setdefault(use.pid, set()).add(number[use.uuid])
    for one, other in combinations(sorted(job), 2):
        shared = any({one, other} <= held for held in owners.values())
        ties[one][other] = ties[other][one] = (2 if shared else 1) * _TIE
    return ties


def _nearness(gpus: Iterable[Gpu], size: int) -> list[list[int]]:
    listed = list(gpus)
    table = [[0] * size for _ in range(size)]
    for (i, one), (k, other) in combinations(enumerate(listed), 2):
        # NVML may know more from one end than from the other
        table[i][k] = table[k][i] = max(_near(one, other), _near(other, one))
    return table


def _near(one: Gpu, other: Gpu) -> int:
    """Return how near two GPUs of a host are to each other; 0 if nobody knows."""
    links = one.nvlinks[other.index] if other.index < len(one.nvlinks) else 0
    if links:
        return _LINKED + min(links, _LINKED)
    path = one.paths[other.index] if other.index < len(one.paths) else ""
    if path in _NEAR:
        return _NEAR[path]
    if None in {one.numa, other.numa}:
        return 0
    return _NEAR["NODE"] if one.numa == other.numa else _NEAR["SYS"]
