"""Progress on a terminal: finished steps stand, running ones move below them.

A line is: sign, step, what it is about, bytes, rate, seconds. The lines that move are drawn
by a thread of their own, so a step only counts.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table as Grid
from rich.text import Text

from gpuckpt.cli import terminal, units
from gpuckpt.cli.page import Tone
from gpuckpt.cli.progress import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from gpuckpt.events import Step

_NAME, _SECONDS, _BYTES, _RATE = 16, 8, 10, 11
_WIDE_ENOUGH, _WIDEST, _ECHO = 72, 100, 3


class Terminal:
    """The story on a terminal."""

    def __init__(self, screen: Console) -> None:
        """Tell it on `screen`."""
        self._screen = screen
        self._lock = threading.RLock()
        self._running: tuple[Meter, ...] = ()  # replaced as a whole: it is drawn without the lock
        self._live: Live | None = None
        self._spinner = Spinner("dots" if terminal.fancy(screen) else "line", style="cyan")

    @contextmanager
    def step(self, name: str, detail: str = "", total: int | None = None) -> Iterator[Step]:
        """Announce a step."""
        meter = Meter(units.printable(name), units.printable(detail), total)
        self._begin(meter)
        try:
            yield meter
        except BaseException:
            self._end(meter, Tone.BAD)
            raise
        else:
            self._end(meter, Tone.GOOD)

    def note(self, text: str) -> None:
        """Tell something worth knowing."""
        self._tell(Tone.NEUTRAL, text)

    def warn(self, text: str) -> None:
        """Tell something dangerous."""
        self._tell(Tone.WARNING, text)

    def close(self) -> None:
        """Give the cursor back."""
        with self._lock:
            self._running = ()
            self._stop()

    def __rich__(self) -> RenderableType:
        """Draw the running steps, as they are now.

        The drawing thread comes here with rich's own lock held, for which a thread that ends a
        step waits with ours: taking ours here would stop both for ever, and the dump with them.
        """
        grid = self._grid()
        for meter in self._running:
            grid.add_row(self._spinner, *self._cells(meter, running=True))
        return grid

    def _begin(self, meter: Meter) -> None:
        with self._lock:
            self._running = (*self._running, meter)
            if self._live is None:
                self._live = Live(self, console=self._screen, transient=True, refresh_per_second=8)
                self._live.start()

    def _end(self, meter: Meter, tone: Tone) -> None:
        meter.end()
        with self._lock:
            self._running = tuple(other for other in self._running if other is not meter)
            if not self._running:
                self._stop()
            grid = self._grid()
            grid.add_row(terminal.mark(self._screen, tone), *self._cells(meter, running=False))
            self._screen.print(grid)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _tell(self, tone: Tone, text: str) -> None:
        grid = Grid.grid(padding=(0, 1, 0, 0))
        words = Text(units.printable(text), style=terminal.STYLES[tone])
        grid.add_row(terminal.mark(self._screen, tone), words)
        self._screen.print(grid)

    def _grid(self) -> Grid:
        grid = Grid.grid(padding=(0, 1, 0, 0), expand=True)
        # the terminal echoes ^C behind the line: it must not begin another one
        grid.width = min(self._screen.width - _ECHO, _WIDEST)
        grid.add_column(width=1)
        grid.add_column(width=_NAME, no_wrap=True, overflow="ellipsis")
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
        grid.add_column(width=_BYTES, justify="right", no_wrap=True)
        if self._screen.width >= _WIDE_ENOUGH:
            grid.add_column(width=_RATE, justify="right", no_wrap=True, style="dim")
        grid.add_column(width=_SECONDS, justify="right", no_wrap=True)
        return grid

    def _cells(self, meter: Meter, *, running: bool) -> list[RenderableType]:
        middle: RenderableType = units.printable(meter.detail)
        if running and meter.total:
            middle = ProgressBar(total=meter.total, completed=min(meter.bytes, meter.total))
        cells: list[RenderableType] = [meter.name, middle]
        cells.append(units.size(meter.bytes) if meter.bytes else "")
        if self._screen.width >= _WIDE_ENOUGH:
            cells.append(meter.rate)
        cells.append(units.seconds(meter.seconds))
        return cells
