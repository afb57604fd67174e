"""What a job knew of its host and is another now, as people and programs see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import gpus
from gpuckpt.cli.page import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.identity import Identity
    from gpuckpt.model import Gpu


def table(what: Identity, *, with_gpus: bool = True) -> tuple[Table, ...]:
    """Return what has changed, a line each; without GPUs where another table has them."""
    rows = tuple(_rows(what, with_gpus=with_gpus))
    return (Table("", ("CHANGED", "WAS", "IS"), rows),) if rows else ()


def _rows(what: Identity, *, with_gpus: bool) -> Iterator[tuple[str, str, str]]:
    if what.hostname is not None:
        yield "host name", *what.hostname
    if what.gone or what.fresh:
        yield "addresses", " ".join(what.gone), " ".join(what.fresh)
    for one in what.gpus if with_gpus else ():
        if one.new is not None:
            yield "GPU", _gpu(one.old), _gpu(one.new)
    if what.order:
        old, new = (" ".join(map(str, numbers)) for numbers in zip(*what.order, strict=True))
        yield "CUDA order", old, new


def _gpu(gpu: Gpu) -> str:
    return f"{gpus.name(gpu)} {gpu.bus_id}"


def payload(what: Identity) -> dict[str, object]:
    """Return it for programs; every key is there whatever has changed."""
    names = what.hostname and {"old": what.hostname[0], "new": what.hostname[1]}
    return {
        "changed": what.words,
        "hostname": names,
        "addresses": {"gone": what.gone, "fresh": what.fresh},
        "gpus": [{"old": _known(one.old), "new": _known(one.new)} for one in what.gpus if one.new],
        "device_order": [{"old": old, "new": new} for old, new in what.order],
        "variables": what.variables,
    }


def _known(gpu: Gpu) -> dict[str, object]:
    return {"index": gpu.index, "uuid": gpu.uuid, "bus_id": gpu.bus_id}
