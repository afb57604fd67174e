"""gpuckpt doctor: can this host dump and restore?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import units
from gpuckpt.cli.context import Application
from gpuckpt.cli.page import Check, Checks, Outcome, Page, Paragraph, Tone
from gpuckpt.errors import HostUnfit

if TYPE_CHECKING:
    from gpuckpt.flow.doctor import DoctorResult


def doctor(app: Application) -> int:
    """Check whether this host can dump and restore.

    Looks at privileges, kernel, CRIU, driver, GPUs and space, then dumps and restores a small
    process of its own. Ends with exit status 3 if anything failed.
    """
    from gpuckpt.flow.doctor import doctor as examine

    return app.show(outcome(examine(app.tools, app.reporter, app.interrupts)))


def outcome(result: DoctorResult) -> Outcome:
    """Show every check, the remedies of those that did not pass, and the verdict."""
    tones = {"ok": Tone.GOOD, "warning": Tone.WARNING, "failed": Tone.BAD}
    checks = tuple(
        Check(tones[check.status], check.status, check.id, check.text, check.remedy)
        for check in result.checks
    )
    failed = sum(check.tone is Tone.BAD for check in checks)
    warned = sum(check.tone is Tone.WARNING for check in checks)
    error = None
    verdict, tone = "This host can dump and restore.", Tone.GOOD
    if warned:
        verdict = f"This host can dump and restore, with {units.count(warned, 'warning')}."
    if failed:
        verdict, tone = "This host cannot dump and restore.", Tone.BAD
        why = f"{units.count(failed, 'check')} failed"
        error = HostUnfit(why, hint="Every failed check names its remedy.")
    return Outcome(
        payload={"checks": result.checks},
        page=Page("", Tone.NEUTRAL, (Checks(checks), Paragraph(verdict, tone))),
        error=error,
    )
