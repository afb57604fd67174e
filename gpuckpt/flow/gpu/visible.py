"""Which GPUs a process could see, by CUDA_VISIBLE_DEVICES as it was when the program started.

CUDA reads the list up to the first entry that names no GPU; one GPU named twice hides all. What a
program sets for itself before it starts CUDA is not seen from outside.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.image.gpunames import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuckpt.model import Gpu

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
# CUDA reads a number as far as it goes, as strtol does: 1st is 1
_NUMBER: Final = re.compile(r"\s*([+-]?\d+)", re.ASCII)


def visible(settings: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...] | None:
    """Return the UUIDs of the GPUs a process could see, in its order.

    None: all of them, or it cannot be told which: numbers among GPUs of several models that are
    not counted by bus id, or parts of a GPU in MIG mode.
    """
    said = settings.get(VISIBLE)
    if said is None:
        return None
    words = said.split(",")
    if words[0].startswith("MIG-"):
        return None
    if not words[0].startswith("GPU-"):
        by_bus = settings.get(ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
        return _unique([_numbered(gpus, word) for word in words]) if by_bus else None
    return _unique([_by_uuid(gpus, word) for word in words])


def _numbered(gpus: Sequence[Gpu], word: str) -> str:
    """Return the GPU of this number in the order of bus ids, "" if there is none."""
    found = _NUMBER.match(word)
    number = int(found[1]) if found else -1
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_id.lower())
    return ordered[number].uuid if 0 <= number < len(ordered) else ""


def _by_uuid(gpus: Sequence[Gpu], word: str) -> str:
    found = named(gpus, word.strip()) if word.strip().startswith("GPU-") else []
    return found[0].uuid if len(found) == 1 else ""


def _unique(uuids: list[str]) -> tuple[str, ...]:
    """Return those before the first that names nothing, none if one is there twice."""
    listed = uuids[: uuids.index("")] if "" in uuids else uuids
    return tuple(listed) if len(set(listed)) == len(listed) else ()
