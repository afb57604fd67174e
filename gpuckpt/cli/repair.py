"""gpuckpt repair: put back what a run that was cut short has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import describe, units
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import DryRun, JobPid
from gpuckpt.cli.page import Block, Findings, Next, Outcome, Page, Table, Tone
from gpuckpt.errors import UndoIncomplete

if TYPE_CHECKING:
    from gpuckpt.flow.repair import RepairResult


def repair(app: Application, pid: JobPid = None, *, dry_run: DryRun = False) -> int:
    """Put back what runs that were cut short have left, or say why it cannot be.

    Jobs get their GPU state back and go on, half-restored tasks are ended, files that nobody
    needs are removed. Without PID everything the journal tells of; with PID only what concerns
    this job, also if somebody else's tool has locked or checkpointed it.
    """
    from gpuckpt.flow.repair import RepairRequest
    from gpuckpt.flow.repair import repair as act

    request = RepairRequest(pid, dry_run)
    return app.show(outcome(act(app.tools, request, app.reporter, app.interrupts), pid))


def outcome(result: RepairResult, pid: int | None = None) -> Outcome:
    """Say what was put right, and what is left: then the same again, once the cause is gone."""
    words = () if pid is None else (str(pid),)
    blocks: list[Block] = []
    if result.done:
        rows = tuple(
            (str(deed.pid) if deed.pid is not None else "", deed.text) for deed in result.done
        )
        column = "WOULD BE DONE" if result.dry_run else "DONE"
        blocks.append(Table("", ("PID", column), rows, right=frozenset({0})))
    error = None
    if result.left:
        blocks.append(Findings(result.left))
        things = units.count(len(result.left), "thing")
        blocks.append(Next((describe.command_line("gpuckpt", "repair", *words),)))
        error = UndoIncomplete(f"{things} could not be put right", findings=result.left)
    return Outcome(
        payload={"dry_run": result.dry_run, "done": result.done, "left": result.left},
        page=Page(_title(result), Tone.BAD if error else Tone.GOOD, tuple(blocks)),
        error=error,
    )


def _title(result: RepairResult) -> str:
    if result.left:
        return f"{units.count(len(result.left), 'thing')} could not be put right"
    if not result.done:
        return "nothing needed repair"
    return "this would be put right" if result.dry_run else "put right"
