"""Timing an operation's phases and events with one clock, and telling the reporter of each."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpuckpt.events import SilentStep
from gpuckpt.timing import BESIDE, Event, Phase, Receipt, seconds, unaccounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Self

    from gpuckpt.events import Reporter, Step
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.spans import Span
    from gpuckpt.timing import Foreign, Wait

CLOCKS: Final = {
    "started": "wall clock, UTC",
    "seconds, phases, waits, events, intervals": "CLOCK_MONOTONIC of gpuckpt",
}


class CountedStep:
    """A reporter's step that also counts what the receipt tells of it.

    All as in the phase; see gpuckpt.flow.work.waiting for `waits` and `work`.
    """

    def __init__(self, step: Step) -> None:
        """Wrap the reporter's step."""
        self.bytes = 0
        self.rounds = 0
        self.waits: tuple[Wait, ...] = ()
        self.work: dict[str, float] = {}
        self._step = step

    def advance(self, amount: int) -> None:
        """Add `amount` bytes; called from many threads, a lost race costs only precision."""
        self.bytes += amount
        self._step.advance(amount)

    def say(self, detail: str) -> None:
        """Pass the words on."""
        self._step.say(detail)


@dataclass(slots=True)
class _Open:
    """A phase that has begun; times in microseconds since the operation's start."""

    number: int
    name: str
    inside: str
    begun: int
    step: CountedStep

    def phase(self, now: int, *, running: bool = False) -> Phase:
        """Return it as it stands."""
        spent, step = seconds(now - self.begun), self.step
        rate = round(step.bytes / spent, 1) if spent and step.bytes else 0.0
        about = (step.bytes, step.rounds, self.inside, rate, running, step.waits, step.work)
        return Phase(self.name, seconds(self.begun), spent, *about)


class Recorder:
    """Runs phases: looks for a signal first, announces, times, and keeps the times.

    All times come from the monotonic clock; only `started` is wall-clock time. A phase that begins
    within another is `inside` it, one that is told to run `beside` the others in none: the rest
    follow one another, so that they add up.
    """

    def __init__(self, operation: str, reporter: Reporter, interrupts: Interrupts) -> None:
        """Start the clock."""
        self.reporter = reporter
        self.spans: tuple[Span, ...] = ()
        self._operation = operation
        self._interrupts = interrupts
        self._started = datetime.now(UTC)
        self._zero = time.monotonic_ns()
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._phases: dict[int, Phase] = {}  # by the order in which they began
        self._events: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._foreign: list[Foreign] = []

    @property
    def now(self) -> float:
        """Seconds since the operation started."""
        return seconds(self._now())

    @property
    def started(self) -> str:
        """When the operation started, by the wall clock."""
        return self._started.isoformat(timespec="seconds").replace("+00:00", "Z")

    @contextmanager
    def phase(
        self,
        name: str,
        detail: str = "",
        total: int | None = None,
        *,
        stoppable: bool = True,
        beside: bool = False,
    ) -> Iterator[CountedStep]:
        """Run one phase; `stoppable` is off where backward is forbidden.

        Raises:
            Interrupted: a signal came before this phase.
        """
        if stoppable:
            self._interrupts.check()
        with self.reporter.step(name, detail, total) as step:
            one = self._begin(name, CountedStep(step), beside=beside)
            try:
                yield one.step
            finally:
                self._end(one)

    @contextmanager
    def part(self, name: str) -> Iterator[CountedStep]:
        """Time a part of the phase that runs; nobody is told but the receipt."""
        one = self._begin(name, CountedStep(SilentStep()), beside=False)
        try:
            yield one.step
        finally:
            self._end(one)

    def event(self, name: str) -> None:
        """Know that something has happened now; only the first time counts."""
        now = self._now()
        with self._lock:
            self._events.setdefault(name, now)

    def forget(self, name: str) -> None:
        """Know that something was taken back."""
        with self._lock:
            self._events.pop(name, None)

    def missed(self, event: str, reason: str) -> None:
        """Know why something will not happen."""
        self._reasons[event] = reason

    def told(self, *foreign: Foreign) -> None:
        """Keep what somebody else has measured."""
        self._foreign += foreign

    def receipt(self, outcome: str = "") -> Receipt:
        """Return what has been timed so far; `outcome` is what ended the operation, if it is over.

        A phase that is not over yet counts as far as it has come.
        """
        now = self._now()
        with self._lock:
            running = {one.number: one.phase(now, running=True) for one in self._open}
            phases = [phase for _, phase in sorted((self._phases | running).items())]
            events = dict(self._events)
        return Receipt(
            operation=self._operation,
            started=self.started,
            seconds=seconds(now),
            phases=tuple(phases),
            unaccounted=unaccounted(seconds(now), phases),
            events=tuple(Event(name, seconds(at)) for name, at in events.items()),
            intervals=tuple(one.interval(events, self._reasons, outcome) for one in self.spans),
            foreign=tuple(self._foreign),
            clocks=CLOCKS | {f"foreign {one.whose}": one.clock for one in self._foreign},
        )

    def _now(self) -> int:
        return (time.monotonic_ns() - self._zero) // 1000

    def _begin(self, name: str, step: CountedStep, *, beside: bool) -> _Open:
        with self._lock:
            around = next((one.name for one in reversed(self._open) if one.inside != BESIDE), "")
            number = len(self._open) + len(self._phases)
            one = _Open(number, name, BESIDE if beside else around, self._now(), step)
            self._open.append(one)
        return one

    def _end(self, one: _Open) -> None:
        with self._lock:
            self._open.remove(one)
            self._phases[one.number] = one.phase(self._now())


class Stages:
    """Phases of which each ends where the next begins, be it in another thread.

    Once it is closed none begins any more: a thread that comes late changes nothing.
    """

    def __init__(self, record: Recorder) -> None:
        """Begin none yet."""
        self.record = record
        self._lock = threading.RLock()
        self._phase: AbstractContextManager[CountedStep] | None = None
        self._step: CountedStep | None = None
        self._closed = False

    def __enter__(self) -> Self:
        """Nothing to be done."""
        return self

    def __exit__(self, *why: object) -> None:
        """End the last phase."""
        self.close(*why)

    def begin(self, name: str, detail: str = "", total: int | None = None) -> None:
        """End what runs, and begin another; it is not asked whether a signal came."""
        with self._lock:
            if self._closed:
                return
            self._end(None, None, None)
            self._phase = self.record.phase(name, detail, total, stoppable=False)
            self._step = self._phase.__enter__()

    def end(self) -> None:
        """End what runs; another may begin later."""
        with self._lock:
            self._end(None, None, None)

    def advance(self, amount: int) -> None:
        """Add bytes to what runs now."""
        if step := self._step:
            step.advance(amount)

    @property
    def step(self) -> CountedStep | None:
        """The step of what runs now."""
        return self._step

    def close(self, *why: object) -> None:
        """End the last phase, if it has not ended."""
        with self._lock:
            self._closed = True
            self._end(*(why or (None, None, None)))

    def _end(self, *why: object) -> None:
        phase, self._phase, self._step = self._phase, None, None
        if phase is not None:
            phase.__exit__(*why)  # type: ignore[arg-type]
