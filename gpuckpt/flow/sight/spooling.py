"""How much of a job's memory can wait in ours until it is written, so that the job need not.

Pure. What is free now is not all free for that: the GPU's bytes come first, an image in memory
needs its own place there, and who runs beside us, the job among them, goes on asking for memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import size
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.flow.sight.facts import DumpFacts

# what is left for others, in bytes and as a share of what is free
_LEFT: Final = 512 << 20
_LEFT_SHARE: Final = 8
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class Spool(Value, frozen=True):
    """`bytes` of those `needed` can wait in memory, of which `available` is there."""

    bytes: int
    needed: int
    available: int

    @property
    def whole(self) -> bool:
        """Whether all of it can wait, so that the job need not wait for a single byte."""
        return self.bytes >= self.needed

    @property
    def story(self) -> str:
        """Say what it means for the pause, and why."""
        if self.whole:
            return (
                f"{size(self.needed)} wait in memory ({size(self.available)} available): the job "
                "goes on when CRIU has read them, before they are compressed and written"
            )
        some = f"only {size(self.bytes)}" if self.bytes else "none"
        return (
            f"{some} of {size(self.needed)} can wait in memory ({size(self.available)} available, "
            "a part of it left to others): the job stands still until the rest is written"
        )


def spool(facts: DumpFacts) -> Spool:
    """Return what a dump of these facts that leaves its job running keeps in memory."""
    available, needed = facts.host.memory_available, facts.image_bytes
    taken = facts.gpu_bytes + facts.gpu_bytes // 20
    if facts.place is not None and facts.place.filesystem in _IN_MEMORY:
        taken += needed
    left = max(0, available - taken)
    spare = max(0, left - left // _LEFT_SHARE - _LEFT)
    return Spool(min(spare, needed), needed, available)
