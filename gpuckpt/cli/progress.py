"""How progress is told on stderr: plain lines, JSON lines, or nothing but warnings.

The terminal's own form is in cli/live.py. All may be called from any thread.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from gpuckpt.cli import units
from gpuckpt.events import SilentStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.cli.streams import Sink
    from gpuckpt.events import Reporter, Step

    class Story(Reporter, Protocol):
        """A reporter that can be told that the story is over."""

        def close(self) -> None:
            """Leave the terminal as it was."""


_PLAIN_EVERY = 10.0
_JSON_EVERY = 0.5


class Meter:
    """One running step: what it is, how far it is, and since when."""

    def __init__(
        self,
        name: str,
        detail: str,
        total: int | None,
        changed: Callable[[Meter], None] | None = None,
    ) -> None:
        """Start counting now; `changed` hears of every advance."""
        self.name = name
        self.detail = detail
        self.total = total
        self.bytes = 0
        self.started = time.monotonic()
        self.told = self.started
        self.ended: float | None = None
        self._changed = changed
        self._lock = threading.Lock()

    def advance(self, amount: int) -> None:
        """Add bytes to what is done."""
        with self._lock:
            self.bytes += amount
        if self._changed is not None:
            self._changed(self)

    def say(self, detail: str) -> None:
        """Replace the words behind the name."""
        self.detail = detail

    def end(self) -> None:
        """Stop the clock."""
        self.ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the step has taken so far."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def rate(self) -> str:
        """Bytes per second in words, empty for a step that moves none."""
        return units.rate(self.bytes, self.seconds)

    def due(self, every: float) -> bool:
        """Whether it is time to tell of it again; True only once per period."""
        now = time.monotonic()
        with self._lock:
            if now - self.told < every:
                return False
            self.told = now
            return True


class Plain:
    """One line when a step begins, one when it ends, one every ten seconds between."""

    def __init__(self, stream: Sink) -> None:
        """Tell it on `stream`."""
        self._stream = stream

    @contextmanager
    def step(self, name: str, detail: str = "", total: int | None = None) -> Iterator[Step]:
        """Announce a step."""
        meter = Meter(name, detail, total, self._advanced)
        self._line(name, "begins" + (f", {detail}" if detail else ""))
        try:
            yield meter
        except BaseException:
            self._ended(meter, "failed after")
            raise
        else:
            self._ended(meter, "done in")

    def note(self, text: str) -> None:
        """Tell something worth knowing."""
        self._line("note", text)

    def warn(self, text: str) -> None:
        """Tell something dangerous."""
        self._line("warning", text)

    def close(self) -> None:
        """Nothing to put back."""

    def _advanced(self, meter: Meter) -> None:
        if meter.due(_PLAIN_EVERY):
            of = f" of {units.size(meter.total)}" if meter.total else ""
            self._line(meter.name, f"{units.size(meter.bytes)}{of}, {meter.rate}")

    def _ended(self, meter: Meter, how: str) -> None:
        meter.end()
        parts = [f"{how} {units.seconds(meter.seconds)}"]
        if meter.bytes:
            parts.append(f"{units.size(meter.bytes)}, {meter.rate}")
        if meter.detail:
            parts.append(meter.detail)
        self._line(meter.name, ", ".join(parts))

    def _line(self, what: str, text: str) -> None:
        self._stream.write(f"gpuckpt: {what}: {units.printable(text)}\n")
        self._stream.flush()


class JsonLines:
    """Every event as one JSON object on a line of its own, for programs."""

    def __init__(self, stream: Sink) -> None:
        """Write to `stream`."""
        self._stream = stream
        self._lock = threading.Lock()
        self._steps = 0

    @contextmanager
    def step(self, name: str, detail: str = "", total: int | None = None) -> Iterator[Step]:
        """Announce a step."""
        with self._lock:
            self._steps += 1
            number = self._steps
        meter = Meter(name, detail, total, lambda now: self._advanced(number, now))
        self.event("begin", step=number, name=name, detail=detail, total=total)
        try:
            yield meter
        except BaseException:
            self._ended(number, meter, ok=False)
            raise
        else:
            self._ended(number, meter, ok=True)

    def note(self, text: str) -> None:
        """Tell something worth knowing."""
        self.event("note", text=text)

    def warn(self, text: str) -> None:
        """Tell something dangerous."""
        self.event("warning", text=text)

    def close(self) -> None:
        """Nothing to put back."""

    def event(self, kind: str, **fields: object) -> None:
        """Write one event."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"event": kind, "time": moment, **fields})
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _advanced(self, number: int, meter: Meter) -> None:
        if meter.due(_JSON_EVERY):
            self.event(
                "bytes",
                step=number,
                name=meter.name,
                bytes=meter.bytes,
                total=meter.total,
                seconds=round(meter.seconds, 3),
            )

    def _ended(self, number: int, meter: Meter, *, ok: bool) -> None:
        meter.end()
        self.event(
            "end",
            step=number,
            name=meter.name,
            detail=meter.detail,
            ok=ok,
            bytes=meter.bytes,
            seconds=round(meter.seconds, 6),
        )


class Quiet:
    """Nothing but warnings."""

    def __init__(self, stream: Sink) -> None:
        """Warn on `stream`."""
        self._plain = Plain(stream)

    @contextmanager
    def step(self, name: str, detail: str = "", total: int | None = None) -> Iterator[Step]:
        """Announce nothing."""
        del name, detail, total
        yield SilentStep()

    def note(self, text: str) -> None:
        """Ignore it."""

    def warn(self, text: str) -> None:
        """Tell something dangerous."""
        self._plain.warn(text)

    def close(self) -> None:
        """Nothing to put back."""
