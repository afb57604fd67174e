"""What a restore does about files, as people and programs see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.cli import units
from gpuckpt.cli.page import Table, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.returning.target.fileplan import FileStep

_MOST: Final = 20
_REFUSED: Final = "refuse"


def table(steps: Iterable[FileStep]) -> tuple[Table, ...]:
    """Return what is done to each file; those that stay for no other reason are left out."""
    shown = [one for one in steps if one.act != "leave" or one.why]
    if not shown:
        return ()
    shown.sort(key=lambda one: one.act != _REFUSED)
    rows = [(str(one.act), one.path, _size(one), _remark(one)) for one in shown[:_MOST]]
    if len(shown) > _MOST:
        rows.append(("", f"and {len(shown) - _MOST} more: --json lists all", "", ""))
    columns = ("FILES", "", "BYTES", "")
    marks = ((_REFUSED, Tone.BAD),)
    return (Table("", columns, tuple(rows), right=frozenset({2}), marks=marks),)


def payload(steps: Iterable[FileStep]) -> list[dict[str, object]]:
    """Return all steps for programs."""
    return [
        {
            "act": one.act,
            "path": one.path,
            "bytes": one.bytes,
            "size": one.size,
            "aside": dict(one.aside),
            "why": one.why,
        }
        for one in steps
    ]


def _size(one: FileStep) -> str:
    return units.size(one.size) if one.made or one.act == "truncate" else ""


def _remark(one: FileStep) -> str:
    """Say where today's bytes go, or why."""
    kept = ", ".join(other for _, other in one.aside)
    if not kept:
        return one.why
    return f"later bytes to {kept}" if one.act == "truncate" else f"today's to {kept}"
