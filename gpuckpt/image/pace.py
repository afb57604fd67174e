"""How hard to compress the next frame, by who waits: the level `auto`.

CRIU is never to wait for us, and the storage never to wait for the packers. So where frames pile
up decides: before the packers, and the next is packed faster; before the storage, and the next
is packed harder, for then it is bytes that are too many. In between both are busy, some frames
are stored as they are and some compressed, and neither waits. Where packers have to wait for a
processor, CRIU has to as well, and only spare time of the processors is for compressing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuckpt.image.traffic import Load

# GB/s of one core (Xeon of 2023, libzstd 1.5.7) and what is left of bf16, fp32, source text and a
# program; half random, half zero is halved by each of them at 1.2 to 8 GB/s:
#   -50: 6.6 1.00   6.6 1.00   0.87 0.64   1.96 0.92
#    -7: 5.5 1.00   5.1 1.00   0.44 0.36   0.69 0.77
#     1: 0.8 0.78   0.8 0.92   0.34 0.22   0.32 0.55
#     3: 0.4 0.78   0.4 0.93   0.23 0.20   0.12 0.48
#     6: 0.1 0.78   0.5 0.92   0.08 0.18   0.06 0.46   (too slow for what it gives: no rung)
# Levels below 0 leave what does not repeat alone, and weights do not. No other parameters of zstd
# do that quicker than level 1: the time goes into its entropy coding, not into the search.
LADDER: Final = (0, -50, -7, 1, 3)
USUAL: Final = 1
_USUAL: Final = LADDER.index(USUAL)
_QUICK: Final = LADDER.index(-50)  # costs weights a look, and takes zeros out all the same
_FEW: Final = 2  # frames at the writers: each has one to come


class Pace:
    """The level of the next frame. Threads may ask at the same time: a step too many is no harm."""

    def __init__(self, *, far: bool = False) -> None:
        """Begin at the usual level; `far` says that a store elsewhere takes the bytes.

        As a rule that is slower than processors compress, be they as crowded as they like. (On two
        crowded ones next to nothing of a text was compressed on its way to a slow store.)
        """
        self._rung = _USUAL
        self._far = far

    def level(self, load: Load) -> int:
        """Return the level of a frame that is packed next, under this load."""
        self._rung += self._step(load)
        return LADDER[self._rung]

    def _step(self, load: Load) -> int:
        if load.pressed and load.to_pack > load.to_write:
            return -1 if self._rung else 0
        if load.crowded and not self._far:
            return self._towards(_QUICK)
        if load.to_write > max(_FEW, load.to_pack):
            return self._harder(load)
        return 0 if load.pressed else self._towards(_USUAL)

    def _towards(self, rung: int) -> int:
        return (self._rung < rung) - (self._rung > rung)

    def _harder(self, load: Load) -> int:
        """Go beyond the usual level only with packers that would have nothing to do."""
        if self._rung < _USUAL:
            return 1
        return 1 if load.idle and self._rung + 1 < len(LADDER) else 0
