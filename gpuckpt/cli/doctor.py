"""gpuckpt doctor: can this host dump and restore?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from gpuckpt.cli import units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import option
from gpuckpt.cli.page import Check, Checks, Outcome, Page, Paragraph, Tone
from gpuckpt.cli.suggest import images
from gpuckpt.errors import HostUnfit
from gpuckpt.location import Location

if TYPE_CHECKING:
    from gpuckpt.flow.doctor import DoctorResult


Facts = Annotated[
    bool,
    option(
        "--facts",
        help="Only print, as JSON, what a restore compares of this host: for `compat` elsewhere.",
    ),
]
For = Annotated[
    list[Location] | None,
    option(
        "--for",
        metavar="IMAGE",
        help="With --facts: also what is here of the files, software and users that this image "
        "needs. May be given several times.",
        parser=values.location("--for"),
        offer=images,
    ),
]


def doctor(app: Application, *, facts: Facts = False, for_: For = None) -> int:
    """Check whether this host can dump and restore.

    Looks at privileges, kernel, CRIU, driver, GPUs and space, then dumps and restores a small
    process of its own. Ends with exit status 3 if anything failed.
    """
    if facts:
        return _facts(app, for_ or [])
    if for_:
        raise values.refuse("--for", "only --facts needs it", "doctor --facts --for IMAGE")
    from gpuckpt.flow.doctor import doctor as examine

    return app.show(outcome(examine(app.tools, app.reporter, app.interrupts)))


def _facts(app: Application, images: list[Location]) -> int:
    """Print one JSON object; with --json in the envelope of all commands."""
    from gpuckpt.flow.returning.opening import examined
    from gpuckpt.flow.returning.target.savedhost import plain, take

    document = plain(take(app.tools, [examined(one, app.tools.stores).manifest for one in images]))
    if app.settings.json:
        return app.show(Outcome(payload=document, page=Page("", Tone.NEUTRAL)))
    app.renderer.out.write(json.dumps(document) + "\n")
    app.renderer.out.flush()
    return 0


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
