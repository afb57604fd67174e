"""Timing an operation's phases with one clock, and telling the reporter of each."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuckpt.model import Phase, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.events import Reporter, Step
    from gpuckpt.flow.work.interrupts import Interrupts


class CountedStep:
    """A reporter's step that also counts the bytes, and the rounds, for the receipt."""

    def __init__(self, step: Step) -> None:
        """Wrap the reporter's step."""
        self.bytes = 0
        self.rounds = 0
        self._step = step

    def advance(self, amount: int) -> None:
        """Add `amount` bytes; called from many threads, a lost race costs only precision."""
        self.bytes += amount
        self._step.advance(amount)

    def say(self, detail: str) -> None:
        """Pass the words on."""
        self._step.say(detail)


class Recorder:
    """Runs phases: looks for a signal first, announces, times, and keeps the times.

    All times come from the monotonic clock; only `started` is wall-clock time.
    """

    def __init__(self, operation: str, reporter: Reporter, interrupts: Interrupts) -> None:
        """Start the clock."""
        self.reporter = reporter
        self._operation = operation
        self._interrupts = interrupts
        self._started = datetime.now(UTC)
        self._zero = time.monotonic()
        self._phases: list[Phase] = []

    @property
    def now(self) -> float:
        """Seconds since the operation started."""
        return time.monotonic() - self._zero

    @contextmanager
    def phase(
        self, name: str, detail: str = "", total: int | None = None, *, stoppable: bool = True
    ) -> Iterator[CountedStep]:
        """Run one phase; `stoppable` is off where backward is forbidden.

        Raises:
            Interrupted: a signal came before this phase.
        """
        if stoppable:
            self._interrupts.check()
        with self.reporter.step(name, detail, total) as step:
            counted = CountedStep(step)
            begun = self.now
            try:
                yield counted
            finally:
                spent = self.now - begun
                self._phases.append(Phase(name, begun, spent, counted.bytes, counted.rounds))

    def receipt(self) -> Receipt:
        """Return what has been timed so far."""
        started = self._started.isoformat(timespec="seconds").replace("+00:00", "Z")
        return Receipt(self._operation, started, self.now, tuple(self._phases))
