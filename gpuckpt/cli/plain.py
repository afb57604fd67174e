"""Pages as plain lines: for pipes, logs and dumb terminals. One fact a line, no drawing.

The shape is stable, so that a script may grep it: `name: value`, tables with a heading line,
findings as `blocker ID pid N OBJECT: reason; remedy: ...`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from gpuckpt.cli import units
from gpuckpt.cli.page import (
    Checks,
    Fields,
    Findings,
    Next,
    Paragraph,
    Table,
    Timeline,
    Verbatim,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.cli.page import Block, Page
    from gpuckpt.model import Finding


def lines(page: Page) -> Iterator[str]:
    """Yield the page's lines, without line ends."""
    if page.title:
        yield units.printable(page.title)
    for block in page.blocks:
        for line in _block(block):
            yield units.printable(line).rstrip()


def finding(found: Finding) -> str:
    """Return one finding as one line."""
    pid = f" pid {found.pid}" if found.pid is not None else ""
    text = _with_remedy(found.reason, found.remedy)
    what = "" if found.object == pid.strip() else f" {found.object}"
    return f"{found.severity} {found.id}{pid}{what}: {text}"


def _with_remedy(text: str, remedy: str) -> str:
    return f"{text.rstrip('.')}; remedy: {remedy}" if remedy else text


def _block(block: Block) -> Iterator[str]:
    match block:
        case Fields():
            before = f"{block.heading} " if block.heading else ""
            yield from (f"{before}{name}: {value}" for name, value in block.rows)
        case Table():
            yield from _table(block)
        case Findings():
            yield from (finding(found) for found in block.findings)
        case Checks():
            for check in block.checks:
                yield f"{check.word} {check.id}: {_with_remedy(check.text, check.remedy)}"
        case Timeline():
            yield f"{block.heading}:"
            yield from _table(_phases(block))
        case Verbatim():
            yield f"{block.heading}:"
            yield from (f"  {line}" for line in block.lines)
        case Paragraph():
            yield block.text
        case Next():
            yield from (f"next: {command}" for command in block.commands)
        case _:
            assert_never(block)


def _table(table: Table) -> Iterator[str]:
    rows = (table.columns, *table.rows)
    cells = [[units.printable(cell) or "-" for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    for row in cells:
        yield "  ".join(
            cell.rjust(width) if column in table.right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )


def _phases(block: Timeline) -> Table:
    receipt = block.receipt
    rows = [
        (
            phase.name,
            f"{phase.started:.3f}",
            f"{phase.seconds:.3f}",
            units.size(phase.bytes) if phase.bytes else "",
            units.rate(phase.bytes, phase.seconds),
            phase.inside,
        )
        for phase in receipt.phases
    ]
    rows.append(("unaccounted", "", f"{receipt.rest:.3f}", "", "", ""))
    rows.append(("all", f"{0:.3f}", f"{receipt.seconds:.3f}", "", "", ""))
    head = f"{receipt.operation} PHASE".upper()
    columns = (head, "START S", "SECONDS", "BYTES", "RATE", "INSIDE")
    return Table(block.heading, columns, tuple(rows), right=frozenset({1, 2, 3, 4}))
