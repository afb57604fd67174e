"""What a restore will take, before it is begun: from its image and earlier restores. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.flow.sight.experience import (
    Estimate,
    Experience,
    Lately,
    lately,
    moving,
    or_assumed,
    phases,
)
from gpuckpt.flow.sight.forecast import GPU_IN, STREAM_PER_CORE
from gpuckpt.flow.work.history import command
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.work.history import Record
    from gpuckpt.image.manifest import Manifest

READ_MOST: Final = 1.6e9
START: Final = 0.4  # seconds from CRIU's start to the first byte, and from the last to the job
# a restore's own look at image and host
CHECKS: Final = 0.05


class Return(Value, frozen=True):
    """What a restore will take: `checks` of image and host, `criu` to read, `gpu_in` the driver.

    `lately` says how good such forecasts were.
    """

    checks: Estimate
    criu: Estimate
    gpu_in: Estimate
    lately: Lately = field(default_factory=Lately)

    @property
    def parts(self) -> dict[str, Estimate]:
        """What the time is made of."""
        return {"checks": self.checks, "criu": self.criu, "gpu-in": self.gpu_in}

    @property
    def seconds(self) -> float:
        """How long it takes until the job runs again; the look afterwards is not counted."""
        return sum(one.value for one in self.parts.values())


def returning(manifest: Manifest, cores: int, records: Iterable[Record] = ()) -> Return:
    """Estimate what the restore of an image takes on a host with so many cores."""
    known = tuple(records)
    root, raw = manifest.tree[0], manifest.totals.raw
    line = command(root.argv, root.comm)
    past = Experience(known, ("restore",), line, size=raw, cuda=bool(manifest.cuda))
    held = sum(use.bytes for use in manifest.nvidia.uses) if manifest.nvidia else 0
    learned = past.rate("criu")
    reading = moving(raw, learned, min(READ_MOST, STREAM_PER_CORE * cores))
    if learned is None:
        reading = Estimate(START + reading.value, reading.basis)
    before = past.learn(lambda record: (one.started for one in phases("criu", record)))
    return Return(
        checks=or_assumed(before, CHECKS),
        criu=reading,
        gpu_in=moving(held, past.rate("gpu-in"), GPU_IN) if held else Estimate(0.0, "no GPU bytes"),
        lately=lately(known, "restore"),
    )
