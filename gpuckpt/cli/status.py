"""gpuckpt status: what is at work, and what was left by runs that were cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import units
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import JobPid
from gpuckpt.cli.page import Block, Fields, Findings, Next, Outcome, Page, Paragraph, Table, Tone
from gpuckpt.errors import Unfinished
from gpuckpt.model import CudaState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.status import Member, StatusResult
    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.model import Finding

_MOST_PIDS = 8


def status(app: Application, pid: JobPid = None) -> int:
    """Show what is at work and what was left by runs that were cut short.

    Without PID for the whole host, processes that somebody else has suspended included; with PID
    for the job of this process. Nothing is touched. Ends with exit status 10 if there is
    something to repair.
    """
    from gpuckpt.flow.status import status as look

    return app.show(outcome(look(app.tools, pid)))


def outcome(result: StatusResult) -> Outcome:
    """Show operations, what was left, and the job if one was asked for."""
    findings = _findings(result)
    blocks: list[Block] = []
    if result.job:
        blocks.append(_job(result.job))
    if result.at_work or result.unfinished:
        blocks.append(_operations(result))
    if findings:
        blocks.append(Findings(findings))
    if rows := _rest(result):
        blocks.append(Fields(rows))
    if result.returning:
        text = "Helpers of a gpuckpt that died are still bringing its job back: look again soon."
        blocks.append(Paragraph(text, Tone.WARNING))
    if result.unfinished:
        blocks.append(Next(("gpuckpt repair",)))
    error = None
    if result.needs_repair:
        number = len(result.unfinished) + len(result.strangers)
        things = units.count(number, "thing needs", "things need")
        error = Unfinished(f"{things} repair", findings=findings)
    title = "nothing needs repair" if error is None else error.message
    tone = Tone.GOOD if error is None else Tone.BAD
    return Outcome(payload=_payload(result), page=Page(title, tone, tuple(blocks)), error=error)


def _findings(result: StatusResult) -> tuple[Finding, ...]:
    left = tuple(found for one in result.unfinished for found in one.left)
    return (*left, *result.strangers, *result.files)


def _operations(result: StatusResult) -> Fields:
    """Return what is known of each, a whole line for the image: a path must stay in one piece."""
    rows = [(entry, "at work") for entry in result.at_work]
    rows += [(one.entry, "cut short") for one in result.unfinished]
    return Fields(tuple(row for entry, word in rows for row in _row(entry, word)))


def _row(entry: Entry, word: str) -> Iterator[tuple[str, str]]:
    pids = [ref.pid for ref in entry.processes] or list(entry.pids)
    by = f"begun {entry.started} by pid {entry.owner.pid}"  # one line at 80 columns
    yield entry.operation, f"{word}, step {entry.step}, {by}"
    yield "  image", entry.image
    if pids:
        shown = " ".join(map(str, pids[:_MOST_PIDS]))
        yield "  processes", shown + (" ..." if len(pids) > _MOST_PIDS else "")


def _job(members: tuple[Member, ...]) -> Table:
    return Table(
        "",
        ("PID", "STATE", "CUDA", "COMMAND"),
        tuple(
            (
                str(one.process.pid),
                one.state,
                "" if one.cuda is CudaState.NONE else one.cuda.value,
                one.process.command,
            )
            for one in members
        ),
        right=frozenset({0}),
    )


def _rest(result: StatusResult) -> tuple[tuple[str, str], ...]:
    rows = []
    if result.last:
        rows.append(("last operation", result.last))
    if result.tables:
        names = ", ".join(result.tables)
        what = "keep TCP connections of jobs that are away, until their restores"
        rows.append(("nftables of CRIU", f"{names}: {what}"))
    if result.logs:
        newest = result.logs[-1]
        rows.append(("kept logs", f"{len(result.logs)} in {newest.parent}"))
        rows.append(("newest log", newest.name))  # alone: a whole path is wider than a terminal
    return tuple(rows)


def _payload(result: StatusResult) -> dict[str, object]:
    return {
        "needs_repair": result.needs_repair,
        "at_work": [_entry(entry) for entry in result.at_work],
        "unfinished": [_entry(one.entry) | {"left": one.left} for one in result.unfinished],
        "strangers": result.strangers,
        "files": result.files,
        "tables": result.tables,
        "logs": result.logs,
        "returning": result.returning,
        "last": result.last,
        "job": [
            {
                "pid": one.process.pid,
                "state": one.state,
                "cuda": one.cuda,
                "command": one.process.argv,
            }
            for one in result.job
        ],
    }


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "id": entry.id,
        "operation": entry.operation,
        "started": entry.started,
        "step": entry.step,
        "owner": entry.owner.pid,
        "image": entry.image,
        "pids": [ref.pid for ref in entry.processes] or list(entry.pids),
    }
