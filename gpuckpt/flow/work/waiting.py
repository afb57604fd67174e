"""Who waited for whom while bytes moved, in words: what packers and unpackers count, for a receipt.

They count by gpuckpt's monotonic clock. Waits of streams that waited at once add up, and so does
the work of all threads: both may be longer than the phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import structs

from gpuckpt.timing import Wait, micro, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuckpt.value import Value

    class Timed(Protocol):
        """A phase's step that can be told of waits and work."""

        waits: tuple[Wait, ...]
        work: dict[str, float]

    Counted = Mapping[str, float]

OURS: Final = "gpuckpt"
CRIU: Final = "CRIU"
# whatever else is counted is work
_WHO: Final = {
    "source": (OURS, CRIU),
    "packers": (CRIU, "packers"),
    "unpackers": (CRIU, "unpackers"),
    "storage": (CRIU, "storage"),
    "sync": (OURS, "sync"),
}


def counted(waits: Value) -> Counted:
    """Return what is counted by its names; all fields of `waits` are seconds."""
    return structs.asdict(waits)


def tell(step: Timed, now: Counted, before: Counted | None = None) -> None:
    """Tell the step of a phase what was counted in it: what there is more than before."""
    more = {name: _more(value, (before or {}).get(name, 0.0)) for name, value in now.items()}
    step.waits = tuple(Wait(*_WHO[name], spent) for name, spent in more.items() if name in _WHO)
    step.work = {name: spent for name, spent in more.items() if name not in _WHO}


def _more(now: float, before: float) -> float:
    return seconds(max(0, micro(now) - micro(before)))
