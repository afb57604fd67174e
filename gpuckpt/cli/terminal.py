"""Pages on a terminal: colour, aligned columns, bars. Wraps to the width there is.

Nothing is boxed: an operator must be able to select a path or a command and paste it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, assert_never, cast

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from gpuckpt.cli import units
from gpuckpt.cli.page import (
    Checks,
    Fields,
    Findings,
    Next,
    Paragraph,
    Table,
    Timeline,
    Tone,
    Verbatim,
)
from gpuckpt.timing import BESIDE

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import RenderableType

    from gpuckpt.cli.page import Block, Page
    from gpuckpt.cli.streams import Tolerant
    from gpuckpt.model import Finding
    from gpuckpt.timing import Phase

STYLES = {
    Tone.GOOD: "green",
    Tone.WARNING: "yellow",
    Tone.BAD: "red",
    Tone.NEUTRAL: "default",
}
_MARKS = {Tone.GOOD: "✓", Tone.WARNING: "!", Tone.BAD: "✗", Tone.NEUTRAL: "•"}
_ASCII_MARKS = {Tone.GOOD: "+", Tone.WARNING: "!", Tone.BAD: "x", Tone.NEUTRAL: "*"}
_INDENT = 2
_BELOW = 3
_NAMES = 5
_ALIKE = 3
_NUMBERS, _RATE, _WITH_RATES = 26, 14, 100
_NARROWEST_BAR = 10
_WIDEST_BAR = 48
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def console(stream: Tolerant) -> Console:
    """Return a console that takes no text for markup: process names are not ours."""
    return Console(file=cast("TextIO", stream), markup=False, emoji=False, highlight=False)


def fancy(screen: Console) -> bool:
    """Whether the terminal can show more than ASCII."""
    return screen.encoding.lower().startswith("utf")


def mark(screen: Console, tone: Tone) -> Text:
    """Return the sign that stands before a line of this tone."""
    signs = _MARKS if fancy(screen) else _ASCII_MARKS
    return Text(signs[tone], style=STYLES[tone])


def show(screen: Console, page: Page) -> None:
    """Print a page."""
    if page.title:
        title = Text(units.printable(page.title), style=f"bold {STYLES[page.tone]}")
        screen.print()
        heading = Grid.grid(padding=(0, 1, 0, 0))
        heading.add_row(mark(screen, page.tone), title)
        screen.print(heading)
    for before, block in zip((None, *page.blocks), page.blocks, strict=False):
        if before is not None and (_stands_apart(before) or _stands_apart(block)):
            screen.print()
        _block(screen, block)


def _stands_apart(block: Block) -> bool:
    return not isinstance(block, Paragraph | Fields) or bool(getattr(block, "heading", ""))


def _block(screen: Console, block: Block) -> None:
    match block:
        case Fields():
            _heading(screen, block.heading)
            _print(screen, _fields(block))
        case Table():
            _heading(screen, block.heading)
            _print(screen, _table(block))
        case Findings():
            _findings(screen, block.findings)
        case Checks():
            _print(screen, _checks(screen, block))
        case Timeline():
            _heading(screen, block.heading)
            _print(screen, _timeline(screen, block))
        case Verbatim():
            _heading(screen, block.heading)
            _print(screen, Text("\n".join(map(units.printable, block.lines)), style="dim"))
        case Paragraph():
            _print(screen, Text(units.printable(block.text), style=STYLES[block.tone]))
        case Next():
            _next(screen, block)
        case _:
            assert_never(block)


def _print(screen: Console, what: RenderableType, deeper: int = 0) -> None:
    screen.print(Padding(what, (0, 0, 0, _INDENT + deeper)))


def _heading(screen: Console, text: str) -> None:
    if text:
        _print(screen, Text(text, style="bold"))


def _next(screen: Console, block: Next) -> None:
    for number, command in enumerate(block.commands):
        line = Text("  next:  " if number == 0 else "         ", style="dim")
        line.append(units.printable(command), style="bold cyan")
        screen.print(line, soft_wrap=True)  # a command is pasted, so the terminal must wrap it


def _grid() -> Grid:
    return Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)


def _fields(block: Fields) -> Grid:
    grid = _grid()
    grid.add_column(style="dim", no_wrap=True, min_width=_NAMES)
    grid.add_column(overflow="fold")
    for name, value in block.rows:
        grid.add_row(name, units.printable(value))
    return grid


def _table(block: Table) -> Grid:
    grid = _grid()
    grid.show_header = True
    tones = dict(block.marks)
    last = len(block.columns) - 1
    for number, column in enumerate(block.columns):
        grid.add_column(
            Text(column, style="dim"),
            justify="right" if number in block.right else "left",
            no_wrap=number != last,
            overflow="fold" if number == last else "ellipsis",
        )
    for row in block.rows:
        grid.add_row(
            *(
                Text(units.printable(cell), style=STYLES[tones.get(cell, Tone.NEUTRAL)])
                for cell in row
            )
        )
    return grid


def _findings(screen: Console, findings: tuple[Finding, ...]) -> None:
    """Print each finding as a line of columns with its reason and remedy below.

    A narrow column for a long path would break it where nobody can paste it any more.
    """
    shown, more = _few_alike(findings)
    ids = max(len(found.id) for found in shown)
    pids = max(len(_pid(found)) for found in shown)
    for number, found in enumerate(shown):
        tone = Tone.BAD if found.blocks else Tone.WARNING
        name = Text(found.id.ljust(ids), style=f"bold {STYLES[tone]}")
        what = "" if found.object == _pid(found) else units.printable(found.object)
        cells = [mark(screen, tone), name, Text(what, style="bold")]
        if pids:
            cells.insert(2, Text(_pid(found).ljust(pids)))
        head = Grid.grid(padding=(0, 2, 0, 0))
        for _ in cells[:-1]:
            head.add_column(no_wrap=True)
        head.add_column(overflow="fold")
        head.add_row(*cells)
        if number:
            screen.print()
        _print(screen, head)
        _print(screen, Text(units.printable(found.reason)), deeper=_BELOW)
        if found.remedy:
            _print(screen, _remedy(screen, found.remedy), deeper=_BELOW)
    if more:
        counted = ", ".join(f"{number} x {name}" for name, number in more.items())
        screen.print()
        _print(screen, Text(f"and {counted}: --json lists all", style="dim"))


def _few_alike(findings: tuple[Finding, ...]) -> tuple[list[Finding], Counter[str]]:
    """Keep a few findings of each kind, and count what is left out."""
    seen: Counter[str] = Counter()
    shown: list[Finding] = []
    more: Counter[str] = Counter()
    for found in findings:
        seen[found.id] += 1
        if seen[found.id] <= _ALIKE:
            shown.append(found)
        else:
            more[found.id] += 1
    return shown, more


def _pid(found: Finding) -> str:
    return f"pid {found.pid}" if found.pid is not None else ""


def _remedy(screen: Console, text: str) -> Grid:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_row(
        Text("→" if fancy(screen) else "->", style="cyan"),
        Text(units.printable(text), style="cyan"),
    )
    return grid


def _checks(screen: Console, block: Checks) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    grid.add_column(width=1)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    for check in block.checks:
        text: RenderableType = Text(units.printable(check.text))
        if check.remedy:
            text = Group(text, _remedy(screen, check.remedy))
        name = Text(check.id, style=f"bold {STYLES[check.tone]}")
        grid.add_row(mark(screen, check.tone), name, text)
    return grid


def _timeline(screen: Console, block: Timeline) -> Grid:
    """Draw a bar for each phase; what is inside another stands indented, and dim."""
    receipt = block.receipt
    phases = receipt.phases
    depths = _depths(phases)
    last = "unaccounted"
    names = max([len(last), *(len(one.name) + 2 * depth for one, depth in depths)])
    wide = screen.width >= _WITH_RATES
    room = screen.width - names - (_NUMBERS + _RATE if wide else _NUMBERS)
    width = max(_NARROWEST_BAR, min(_WIDEST_BAR, room))
    whole = max([receipt.seconds, *(one.started + one.seconds for one in phases)])
    grid = _grid()
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    for _ in range(3 if wide else 2):
        grid.add_column(justify="right", no_wrap=True)
    for one, depth in depths:
        drawn = Text(
            bar(one, whole, width, fine=fancy(screen)), style="dim cyan" if depth else "cyan"
        )
        cells = [units.seconds(one.seconds), units.size(one.bytes) if one.bytes else ""]
        cells += [units.rate(one.bytes, one.seconds)] if wide else []
        name = Text("  " * depth + units.printable(one.name), style="dim" if depth else "")
        grid.add_row(name, drawn, *cells)
    grid.add_row(Text(last, style="dim"), "", units.seconds(receipt.rest))
    grid.add_row(Text("all", style="dim"), "", units.seconds(receipt.seconds))
    return grid


def _depths(phases: tuple[Phase, ...]) -> list[tuple[Phase, int]]:
    """Return each phase with how many it is inside of; a name may come more than once."""
    found: list[tuple[Phase, int]] = []
    known: dict[str, int] = {BESIDE: 0}
    for one in phases:
        depth = known.get(one.inside, 0) + 1 if one.inside else 0
        known[one.name] = depth
        found.append((one, depth))
    return found


def bar(phase: Phase, whole: float, width: int, *, fine: bool) -> str:
    """Return the phase as a bar that starts where the phase started, `width` columns in all."""
    scale = width / whole if whole > 0 else 0
    start = min(int(phase.started * scale), width - 1)
    eighths = round(phase.seconds * scale * 8)
    full, rest = divmod(eighths, 8)
    if not fine:
        return (" " * start + "#" * max(1, full))[:width].ljust(width)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return (" " * start + (drawn or "▏"))[:width].ljust(width)
