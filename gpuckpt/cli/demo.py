"""gpuckpt demo: see it happen, on a small job of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import describe, units
from gpuckpt.cli.context import Application
from gpuckpt.cli.page import Fields, Next, Outcome, Page, Timeline, Tone

if TYPE_CHECKING:
    from gpuckpt.flow.trial import Trial


def demo(app: Application) -> int:
    """Dump and restore a small counting job, to see it happen.

    On the GPU if there is one. Everything it makes is removed at the end.
    """
    from gpuckpt.flow.demo import demo as perform

    return app.show(outcome(perform(app.tools, app.reporter, app.interrupts)))


def outcome(trial: Trial) -> Outcome:
    """Show what was proved, and both timelines."""
    gpu = f", {units.size(trial.gpu_bytes)} of GPU memory" if trial.gpu_bytes else ""
    rows = (
        ("job", f"counted on the {trial.device}, pid {trial.pid}{gpu}"),
        ("before", f"1 to {trial.last}, then dumped and gone"),
        ("after", f"{trial.last + 1} to {trial.ticks}: no number lost, repeated or wrong"),
        ("image", describe.sizes(trial.dumped.manifest)),
    )
    return Outcome(
        payload={
            "device": trial.device,
            "pid": trial.pid,
            "last": trial.last,
            "ticks": trial.ticks,
            "gpu_bytes": trial.gpu_bytes,
            "totals": trial.dumped.manifest.totals,
            "dump": trial.dumped.receipt,
            "restore": trial.restored.receipt,
        },
        page=Page(
            "the job came back and counted on from where it stood",
            Tone.GOOD,
            (
                Fields(rows),
                Timeline("dump", trial.dumped.receipt),
                Timeline("restore", trial.restored.receipt),
                Next(("gpuckpt jobs", "gpuckpt dump PID")),
            ),
        ),
    )
