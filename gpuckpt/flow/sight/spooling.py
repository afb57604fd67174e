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
# what this process and CRIU need beside all buffers, and the least that buffers do their work with
_BESIDE: Final = 72 << 20
_LEAST: Final = 24 << 20
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
    left, needed = _left(facts), facts.image_bytes
    spare = max(0, left - left // _LEFT_SHARE - _LEFT)
    return Spool(min(spare, needed), needed, facts.host.memory_available)


def buffers(facts: DumpFacts) -> int:
    """Return the most that the buffers of a dump may take: who takes more than a cgroup has dies.

    (A dump of 600 MiB in a cgroup of 140 MiB was ended by the kernel, in one of 100 MiB as well.)
    """
    return max(_LEAST, _left(facts) - _BESIDE)


def _left(facts: DumpFacts) -> int:
    """Return what there is when the GPU's bytes, and an image in memory, have their place."""
    taken = facts.gpu_bytes + facts.gpu_bytes // 20
    if facts.place is not None and facts.place.filesystem in _IN_MEMORY:
        taken += facts.image_bytes
    return max(0, facts.host.memory_available - taken)
