"""Who waited for whom while bytes moved, in words: what packers and unpackers count, for a receipt.

They count by gpuckpt's monotonic clock. Waits of streams that waited at once add up, and so does
the work of all threads: both may be longer than the phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import structs

from gpuckpt.timing import Wait, micro, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.value import Value

    class Timed(Protocol):
        """A phase's step that can be told of waits and work."""

        waits: tuple[Wait, ...]
        work: dict[str, float]


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


class Tally:
    """What a packer or an unpacker counts, told phase by phase."""

    def __init__(self, waits: Callable[[], Value]) -> None:
        """Ask `waits`; all fields of what it returns are seconds."""
        self._waits = waits
        self._before: dict[str, float] = {}

    def skip(self) -> None:
        """Leave out what was counted so far: it belongs to no phase that is told of it."""
        self._before = structs.asdict(self._waits())

    def tell(self, step: Timed | None) -> None:
        """Tell the step of a phase what has been counted since."""
        before = self._before
        self.skip()
        more = {name: _more(now, before.get(name, 0.0)) for name, now in self._before.items()}
        if step is not None:
            step.waits = tuple(
                Wait(*_WHO[name], spent) for name, spent in more.items() if name in _WHO
            )
            step.work = {name: spent for name, spent in more.items() if name not in _WHO}


def _more(now: float, before: float) -> float:
    return seconds(max(0, micro(now) - micro(before)))
