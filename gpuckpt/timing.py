"""What an operation took: phases, the time between named events, and who waited for whom.

Times are seconds of one clock, gpuckpt's own monotonic one, in whole microseconds: so they add up
to the last digit. What other clocks say stands apart, with whose clock it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

_MICRO = 1_000_000
# a phase that is `inside` this one ran beside the others
BESIDE = "all"


class Wait(Value, frozen=True):
    """How long `who` had nothing to do but to wait `on` somebody."""

    who: str
    on: str
    seconds: float


class Phase(Value, frozen=True):
    """One timed step: `started` counts from the operation's start, `bytes` 0 if none moved.

    `rounds` are the tries that a lock took, 0 for what is done once. `inside` names the phase that
    this is a part of, or is "all" for one that ran beside the others: neither counts in a sum.
    `running`: it was not over when this was written; `rate` in bytes a second. `work` is for how
    long threads were at it, all of them together, by what they did.
    """

    name: str
    started: float
    seconds: float
    bytes: int = 0
    rounds: int = 0
    inside: str = ""
    rate: float = 0.0
    running: bool = False
    waits: tuple[Wait, ...] = ()
    work: dict[str, float] = field(default_factory=dict)


class Event(Value, frozen=True):
    """Something that happened, `at` so many seconds after the operation's start."""

    name: str
    at: float


class Interval(Value, frozen=True):
    """The time from one event to another; None, and the `reason`, if one of them did not happen."""

    name: str
    begin: str
    end: str
    seconds: float | None = None
    reason: str = ""


class Foreign(Value, frozen=True):
    """What somebody else measured by a `clock` of his own: `seconds` and `counts` by name."""

    whose: str
    clock: str
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class Receipt(Value, frozen=True):
    """The timed phases of one operation; `started` is UTC ISO 8601, `seconds` the whole.

    The phases that are inside no other, and `unaccounted`, add up to the whole; it is None where
    it was not written. `clocks` says by which clock what is told. `foreign` has what others
    measured, by theirs.
    """

    operation: str
    started: str
    seconds: float
    phases: tuple[Phase, ...]
    unaccounted: float | None = None
    events: tuple[Event, ...] = ()
    intervals: tuple[Interval, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    clocks: dict[str, str] = field(default_factory=dict)

    @property
    def rest(self) -> float:
        """What no phase accounts for, also of a receipt that does not say it."""
        if self.unaccounted is not None:
            return self.unaccounted
        return max(0.0, unaccounted(self.seconds, self.phases))

    def interval(self, name: str) -> float | None:
        """Return how long an interval was, None if it has no end, or is not told of."""
        return next((one.seconds for one in self.intervals if one.name == name), None)


def micro(seconds: float) -> int:
    """Return whole microseconds."""
    return round(seconds * _MICRO)


def seconds(microseconds: int) -> float:
    """Return the number of seconds that is printed with six digits at most."""
    return microseconds / _MICRO


def unaccounted(whole: float, phases: Iterable[Phase]) -> float:
    """Return what is left of the whole without the phases that are inside no other."""
    return seconds(micro(whole) - sum(micro(one.seconds) for one in phases if not one.inside))
