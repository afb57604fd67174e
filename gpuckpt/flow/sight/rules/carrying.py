"""Rules about files that are to go along in the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.along import MOST
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.along import Missed
    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_REASONS: Final = {
    "missing": ("There is nothing by this name.", "Give the path of a file or folder that exists."),
    "many": (
        f"All that is to be included is more than {MOST} files, and a manifest names every one.",
        "Include less of it, leave parts out (--exclude), or keep it beside the image.",
    ),
    "kind": (
        "It is no file, nor a folder with files; links, sockets, pipes and devices stay out.",
        "Give the path of a file or folder.",
    ),
}


def include(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """What was asked for goes along whole, or nothing is done."""
    for one in facts.along.missed:
        yield blocker("include-unfit", one.path, *_reason(one))


def _reason(one: Missed) -> tuple[str, str]:
    return _REASONS.get(one.why, (f"It cannot be read: {one.why}.", "Include what can be read."))


def left_out(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Of a folder the files go along, and the folders that they are in."""
    if facts.along.others:
        yield warning(
            "include-left-out",
            f"{facts.along.others} in all",
            "Links, sockets, pipes and devices in what is to be included stay out of the image.",
            "Include what a link leads to by a path of its own, if the job needs it.",
        )


def unreadable(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """On some mounts root may read less than the job: found out now, not while it stands still."""
    for one in facts.along.unread:
        yield blocker(
            "file-unreadable",
            one.path,
            f"The file is to go along in the image and cannot be read: {one.why}.",
            f"Leave it out: --exclude {one.path}",
        )


def nameless(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU finds it by means of its own, or tells that it does not; we have only the name."""
    for path in facts.along.lost:
        yield warning(
            "file-not-carried",
            path,
            "The job writes this file, and it does not go along: its name does not lead to it.",
            "Keep a copy of it with the image.",
        )


RULES: Final[tuple[Rule, ...]] = (include, left_out, unreadable, nameless)
