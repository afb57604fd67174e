"""The rounds of a lock over several processes: how long each may take, and what they have shown.

A rank that waits for a peer which is locked already cannot be locked, whatever its time, so a new
try finds a good moment sooner than a longer one: two ranks in 4400 all-reduces a second were held
after 1 to 9 tries of 20 ms, at most 0.3 s; tries of 0.5 s and longer took up to 3.9 s (two H200s,
driver 580.159). Only a job whose kernels run longer needs longer tries.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuLockTimeout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuckpt.errors import CudaCallFailed

SHORT_TRIES: Final = 10
SHORT_TRY_SECONDS: Final = 0.02
LONG_TRY_SECONDS: Final = 5.0
_LEAST: Final = 0.001  # the driver takes milliseconds, and 0 for ever
_MOST_NAMED: Final = 8

_LONG: Final = "A long kernel may be running; try again with a larger --lock-timeout."
_WAITING: Final = (
    "They wait for each other by turns, as in a collective, and no round fell between two: try "
    "again with a larger --lock-timeout, or when the job does something else."
)
_ONE: Final = (
    "The others were held every time: {busy} runs a kernel that takes longer, or waits for "
    "somebody outside of the tree. Try again with a larger --lock-timeout."
)
_NEW: Final = "Wait until all workers of the job are up."


class Rounds:
    """The tries of one lock, bounded by `timeout` seconds together."""

    def __init__(self, timeout: float) -> None:
        """Start the clock."""
        self.count = 0
        self._timeout = timeout
        self._ends = time.monotonic() + timeout
        self._missed: Counter[int] = Counter()
        self._asked: Counter[int] = Counter()
        self._late: tuple[int, ...] = ()
        self._held: tuple[int, ...] = ()

    @property
    def over(self) -> bool:
        """Whether there is no time for another one."""
        return time.monotonic() >= self._ends

    def begin(self, pids: Collection[int]) -> float:
        """Begin a round over some processes; return how many seconds it may take.

        A process alone waits for nobody that we hold: it gets all the time there is.
        """
        self.count += 1
        left = max(_LEAST, self._ends - time.monotonic())
        longest = max(LONG_TRY_SECONDS, self._timeout / 3)
        return left if len(pids) == 1 else min(left, try_seconds(self.count, longest))

    def missed(self, why: CudaCallFailed) -> None:
        """Note who could not be held this time."""
        self._late = tuple(one.pid for one in why.failed)
        self._held = tuple(one.pid for one in why.outcomes if one.ok)
        self._asked.update(one.pid for one in why.outcomes)
        self._missed.update(self._late)

    def rest(self) -> None:
        """Wait a random moment, to fall out of step with the job."""
        left = max(0.0, self._ends - time.monotonic())
        time.sleep(min(left, random.uniform(0, SHORT_TRY_SECONDS)))  # noqa: S311

    def given_up(self, fresh: Iterable[int] = ()) -> GpuLockTimeout:
        """Return what it came to; `fresh` are processes that began with CUDA in the last round."""
        within = f"within {self._timeout:g} s"
        if started := sorted(fresh):
            return GpuLockTimeout(
                f"the driver could not hold the whole job {within}: process {_names(started)} has "
                "started CUDA meanwhile",
                hint=_NEW,
            )
        rounds = f" ({self.count} rounds)" if self.count > 1 else ""
        also = f"; process {_names(self._held)} was held and let go again" if self._held else ""
        return GpuLockTimeout(
            f"the driver could not hold process {_names(self._late)} {within}{rounds}{also}",
            hint=self._hint(),
            excerpt=tuple(
                f"process {pid}: held in {asked - self._missed[pid]} of {asked} rounds"
                for pid, asked in sorted(self._asked.items())
                if self.count > 1
            ),
        )

    def _hint(self) -> str:
        """Say what the pattern of those that were held means."""
        if len(self._missed) > 1:
            return _WAITING
        if len(self._asked) > 1:
            return _ONE.format(busy=f"process {next(iter(self._missed))}")
        return _LONG


def try_seconds(number: int, longest: float) -> float:
    """Return how long the try of this number, counted from 1, may take."""
    doublings = min(max(0, number - SHORT_TRIES), 16)
    return float(min(SHORT_TRY_SECONDS * 2**doublings, longest))


def _names(pids: Collection[int]) -> str:
    """Name a few processes, count the rest."""
    listed = list(pids)
    more = len(listed) - _MOST_NAMED
    named = ", ".join(map(str, listed[:_MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named
