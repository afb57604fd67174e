"""Whom the job belongs to: it comes back under its numbers, and each host has names of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.returning.target.rule import Rule
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding


def owners(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Under a number that is somebody else's the job would run with that one's rights and files."""
    here = {(one.kind, one.number): one.name for one in facts.owners}
    for one in manifest.owners:
        now = here.get((one.kind, one.number), one.name)
        what = f"{one.kind} {one.number}"
        if now == one.name:
            continue
        if now:
            yield blocker(
                f"gate-{one.kind}",
                what,
                f"The job ran as {what}, which was {one.name}; here that is {now}.",
                f"Give {one.name} the number {one.number} on this host, or override with "
                f"--force-gate gate-{one.kind} if {now} may have the job.",
            )
        else:
            yield warning(
                f"{one.kind}-unknown",
                what,
                f"The job ran as {what}, which was {one.name}; here it has no name.",
                "Nothing to do, unless the job asks for its name, as login shells, ssh and "
                "getpass.getuser do: then make it.",
            )


RULES: Final[tuple[Rule, ...]] = (owners,)
