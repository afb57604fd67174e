"""Tables of what GPU tests have measured, printed at once and again when all tests have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

_kept: list[tuple[str, str]] = []


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Keep a table; numbers that are not whole get three digits."""
    cells = [list(columns), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
    text = "\n".join(lines)
    _kept.append((title, text))
    print(f"\n{title}\n{text}")


def show(terminal: pytest.TerminalReporter) -> None:
    """Print all that were kept."""
    for title, text in _kept:
        terminal.section(title)
        terminal.write_line(text)
    _kept.clear()


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
