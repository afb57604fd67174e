"""What a job knew of its host and GPUs and is another after a move: listed, and told to a hook.

A job's memory and environment stay as they were: nothing here is put right, it is only told.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.image.gpuplan import GpuPlan
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import GpuPlace, HostFacts


class Identity(Value, frozen=True):
    """All that is another than it was.

    `hostname` is the old name and the new, None if it is the same. `gone` are addresses that the
    old host had and this one lacks, `fresh` those that only this one has; both empty if the image
    does not tell. `gpus` are those that the job used or could see and that have another number,
    UUID or bus id, `order` the old and new numbers of all it could see: empty if a program that
    lists them finds them in the order they had. `variables` names what the job was started with
    that may tell of any of it.
    """

    hostname: tuple[str, str] | None = None
    gone: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    gpus: tuple[GpuPlace, ...] = ()
    order: tuple[tuple[int, int], ...] = ()
    variables: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Name what has changed, for a script: hostname, addresses, gpus, order."""
        found = {
            "hostname": self.hostname is not None,
            "addresses": bool(self.gone or self.fresh),
            "gpus": bool(self.gpus),
            "order": bool(self.order),
        }
        return tuple(word for word, changed in found.items() if changed)


def changes(manifest: Manifest, host: HostFacts, plan: GpuPlan | None) -> Identity:
    """Compare what the job knew with what it meets; `plan` says which GPU goes where."""
    old = manifest.host
    known = bool(old.addresses and host.addresses)
    seen = [one for one in (plan.places if plan else ()) if one.new and one.part != "spare"]
    numbers = sorted((one.old.index, one.new.index) for one in seen if one.new)
    return Identity(
        hostname=None if old.hostname == host.hostname else (old.hostname, host.hostname),
        gone=_without(old.addresses, host.addresses) if known else (),
        fresh=_without(host.addresses, old.addresses) if known else (),
        gpus=tuple(one for one in seen if _moved(one)),
        order=() if numbers == sorted(numbers, key=itemgetter(1)) else tuple(numbers),
        variables=manifest.identity,
    )


def told(what: Identity) -> dict[str, str]:
    """Return it as variables for a hook; all are there, empty where nothing has changed.

    Lists are separated by blanks, old and new GPUs in the same order.
    """
    gpus = [(one.old, one.new) for one in what.gpus if one.new]
    pairs = {
        "ADDRESSES": (what.gone, what.fresh),
        "GPUS": ([one.uuid for one, _ in gpus], [one.uuid for _, one in gpus]),
        "BUS_IDS": ([one.bus_id for one, _ in gpus], [one.bus_id for _, one in gpus]),
        "GPU_NUMBERS": ([one.index for one, _ in gpus], [one.index for _, one in gpus]),
        "CUDA_ORDER": ([old for old, _ in what.order], [new for _, new in what.order]),
    }
    found = {
        "GPUCKPT_CHANGED": " ".join(what.words),
        "GPUCKPT_VARIABLES": " ".join(what.variables),
    }
    for name, (old, new) in pairs.items():
        found[f"GPUCKPT_{name}_WAS"] = " ".join(map(str, old))
        found[f"GPUCKPT_{name}_NOW"] = " ".join(map(str, new))
    return found


def _without(these: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for one in these if one not in others)


def _moved(place: GpuPlace) -> bool:
    old, new = place.old, place.new
    return new is not None and (old.index, old.uuid, old.bus_id) != (
        new.index,
        new.uuid,
        new.bus_id,
    )
