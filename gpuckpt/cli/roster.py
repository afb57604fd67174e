"""The processes of a job as a plan lists them: what each is to the GPU, and what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import gpus, units
from gpuckpt.cli.page import Table

if TYPE_CHECKING:
    from gpuckpt.flow.outlook import Row

_MOST_ROWS = 10  # eight ranks, their launcher, and one more
_FEW = 2
_ROLES = ("CUDA", "GPU files", "plain")
_LONGEST_COMMAND = 40  # one line each at 80 columns
_BESIDE_A_UUID = 29


def table(rows: tuple[Row, ...]) -> Table:
    """Return the processes, alike ones in one line; those on a GPU have the first right to one."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.role, row.indexes, row.process.command), []).append(row)
    groups = [
        part
        for group in alike.values()
        for part in ([group] if len(group) > _FEW else [[row] for row in group])
    ]
    on_gpu = sorted(groups, key=lambda group: _ROLES.index(group[0].role))
    shown = sorted(on_gpu[:_MOST_ROWS], key=lambda group: rows.index(group[0]))
    hidden = sum(len(group) for group in on_gpu[_MOST_ROWS:])
    longest = _BESIDE_A_UUID if any(row.uses for row in rows) else _LONGEST_COMMAND
    lines = [_line(group, longest) for group in shown]
    if hidden:
        lines.append(("", "", "", "", "", f"and {hidden} more: --json lists all"))
    columns = ("PID", "ROLE", "GPU", "GPU BYTES", "RSS", "COMMAND")
    return Table("", columns, tuple(lines), right=frozenset({0, 3, 4}))


def _line(group: list[Row], longest: int) -> tuple[str, ...]:
    """Return one process, or several alike with what they hold together."""
    first = group[0]
    held = sum(row.gpu_bytes for row in group)
    command = first.process.command
    if longest == _BESIDE_A_UUID and first.process.argv:  # the script matters more than the folder
        command = command[first.process.argv[0].rfind("/") + 1 :]
    if len(group) > 1:
        command = f"{len(group)} x {command}"
    if len(command) > longest:
        command = command[: longest - 3] + "..."
    return (
        str(first.process.pid),
        first.role,
        _gpus(first),
        units.size(held) if held else "",
        units.size(sum(row.process.rss for row in group)),
        command,
    )


def _gpus(row: Row) -> str:
    """Return number and UUID of the GPU a process is on; of several only the numbers."""
    numbers = ",".join("?" if index is None else str(index) for index in row.indexes)
    return f"{numbers} {gpus.digits(row.uses[0].uuid)}" if len(row.uses) == 1 else numbers


def payload(row: Row) -> dict[str, object]:
    """Return all of a process for programs."""
    return {
        "pid": row.process.pid,
        "ppid": row.process.ppid,
        "start_time": row.process.ref.start_time,
        "uid": row.process.uid,
        "role": row.role,
        "gpus": [
            {"uuid": use.uuid, "index": index, "bytes": use.bytes}
            for use, index in zip(row.uses, row.indexes, strict=True)
        ],
        "visible": row.visible,
        "rss": row.process.rss,
        "threads": len(row.process.threads),
        "command": row.process.argv or (f"[{row.process.comm}]",),
    }
