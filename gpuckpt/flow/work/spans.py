"""The intervals of each operation: from which event to which, and why one has no end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.timing import Interval, seconds
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGUN: Final = "begun"
# the job comes to stand still
AT_REST: Final = "at-rest"  # every rank at the same step, because it was asked to
LOCK: Final = "lock"  # the first driver is told to hold its process, or would be if there was one
FROZEN: Final = "frozen"  # CRIU has asked for its first image: it has the tree
# the image stands
COMMITTED: Final = "committed"
GONE: Final = "gone"  # every pid of the job is free
# the job goes on
LET_GO: Final = "let-go"  # CRIU's dump has ended, and let the tree run
RELEASED: Final = "released"  # CRIU's restore has ended, and let the tree run
UNLOCKED: Final = "unlocked"  # the driver has given the last process back its GPU state
RESUMED: Final = "resumed"  # the ranks were told to go on from their step
# a restored job
PROGRESS: Final = "first-progress"  # a process of it was seen to have used CPU time since
PROBED: Final = "probe-ready"  # the user's probe has succeeded

NOT_YET: Final = "it was still to come when this was written"
NO_PROBE: Final = "no --probe was given"


class Span(Value, frozen=True):
    """An interval to be told of, whether its end comes or not; `why` it may not is known before."""

    name: str
    begin: str
    end: str
    why: str = ""

    def interval(
        self, events: Mapping[str, int], reasons: Mapping[str, str], outcome: str
    ) -> Interval:
        """Return it as it stands; events are in microseconds, the operation's start at 0."""
        first, last = {BEGUN: 0, **events}.get(self.begin), events.get(self.end)
        if first is not None and last is not None:
            return Interval(self.name, self.begin, self.end, seconds(last - first))
        missed = self.begin if first is None else self.end
        failed = f"{missed} was not reached: {outcome}" if outcome else NOT_YET
        return Interval(
            self.name, self.begin, self.end, None, reasons.get(missed) or self.why or failed
        )


def of_dump(*, cuda: bool, quiesced: bool, stays: bool) -> tuple[Span, ...]:
    """Return what a dump tells: of a job that stays the pause ends when it goes on."""
    still = AT_REST if quiesced else LOCK
    if stays:
        on = goes_on(LET_GO, cuda=cuda, quiesced=quiesced)
        return (
            Span("pause", still, on),
            Span("frozen", FROZEN, LET_GO),
            Span("image", BEGUN, COMMITTED),
        )
    return (
        Span("pause", still, COMMITTED),
        Span("frozen", FROZEN, COMMITTED),
        Span("image", BEGUN, COMMITTED),
        Span("off", still, GONE),
    )


def of_rehearsal(*, quiesced: bool) -> tuple[Span, ...]:
    """Return what a rehearsal in place tells."""
    still = AT_REST if quiesced else LOCK
    return (Span("pause", still, goes_on(UNLOCKED, cuda=True, quiesced=quiesced)),)


def of_restore(*, cuda: bool, quiesced: bool, probe: bool) -> tuple[Span, ...]:
    """Return what a restore tells: that the job runs, moves, and answers are three things."""
    return (
        Span("runs", BEGUN, goes_on(RELEASED, cuda=cuda, quiesced=quiesced)),
        Span("first-progress", BEGUN, PROGRESS),
        Span("probe-ready", BEGUN, PROBED, "" if probe else NO_PROBE),
    )


def goes_on(otherwise: str, *, cuda: bool, quiesced: bool) -> str:
    """Return the event from which a job goes on."""
    if quiesced:
        return RESUMED
    return UNLOCKED if cuda else otherwise


# what each event means, for those who read an interval elsewhere
MEANS: Final = {
    BEGUN: "the operation began",
    AT_REST: "every rank stood at the same step, as it had been asked to",
    LOCK: "the driver was told to hold the first process, or would have been if there was one",
    FROZEN: "CRIU asked for its first image: the whole tree stood still",
    COMMITTED: "the image was complete, synced and renamed to its place",
    GONE: "every pid of the job was free",
    LET_GO: "CRIU's dump had ended, and let the tree run",
    RELEASED: "CRIU's restore had ended, and let the tree run",
    UNLOCKED: "the driver had given the last process back its GPU state",
    RESUMED: "the ranks were told to go on from their step",
    PROGRESS: "a process was seen to have used CPU time since it was let go on",
    PROBED: "the user's probe had succeeded",
}
