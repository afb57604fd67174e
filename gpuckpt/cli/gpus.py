"""GPUs as people see them: short names, and where each GPU of an image goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import units
from gpuckpt.cli.page import Table, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuckpt.model import Gpu, GpuPlace

# GPU- and the first group of a UUID: enough for --gpu-map, and for CUDA_VISIBLE_DEVICES
_SHORT = 12
_HOW = {"same": "the same", "asked": "by --gpu-map", "planned": "by plan"}


def short(uuid: str) -> str:
    """Return the beginning of a UUID."""
    return uuid[:_SHORT]


def digits(uuid: str) -> str:
    """Return what tells GPUs apart where there is little room."""
    return short(uuid).removeprefix("GPU-")


def table(places: Sequence[GpuPlace]) -> tuple[Table, ...]:
    """Return where the GPUs of an image go; those that stay and were of no use are left out."""
    shown = [one for one in places if one.part == "used" or one.how != "same" or one.trouble]
    if not shown:
        return ()
    rows = [
        (
            name(one.old),
            name(one.new) if one.new is not None else "none",
            units.size(one.need) if one.need else "",
            units.size(one.new.memory_free) if one.new is not None else "",
            one.trouble or _HOW.get(one.how, ""),
        )
        for one in shown
    ]
    marks = tuple({(one.trouble, Tone.BAD) for one in shown if one.trouble})
    columns = ("GPU OF IMAGE", "GPU HERE", "NEEDED", "FREE", "HOW")
    return (Table("", columns, tuple(rows), right=frozenset({2, 3}), marks=marks),)


def name(gpu: Gpu) -> str:
    """Return number and short UUID."""
    return f"{gpu.index} {short(gpu.uuid)}"


def payload(places: Iterable[GpuPlace]) -> list[dict[str, object]]:
    """Return the places for programs."""
    return [
        {
            "old": _gpu(one.old),
            "new": _gpu(one.new) if one.new is not None else None,
            "how": one.how,
            "part": one.part,
            "needed": one.need,
            "free": one.new.memory_free if one.new is not None else 0,
            "trouble": one.trouble,
        }
        for one in places
    ]


def _gpu(gpu: Gpu) -> dict[str, object]:
    return {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name}
