"""Rules about the files that an image carries: names that are taken, folders without room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.returning.target.ground import folder_of
from gpuckpt.flow.returning.target.rule import Rule, some
from gpuckpt.flow.returning.target.standing import State
from gpuckpt.flow.sight.rules.rule import size
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding


def taken(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A file of somebody else is never written over, whatever its name."""
    for one in facts.carried:
        if one.state is State.TAKEN:
            yield blocker(
                "file-taken",
                one.path,
                f"The image carries the job's {one.path}, and here is another: {one.why}.",
                "End what uses it." if one.pid else f"Remove it if nobody needs it: rm {one.path}",
                one.pid,
            )


def shared(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Memory that two jobs use is fine only if they have always shared it."""
    for one in facts.carried:
        used = one.pid is not None and one.pid not in facts.running  # else that is told already
        if one.state is State.THERE and one.file.exact and one.file.memory and used:
            yield blocker(
                "gate-file-shared",
                one.path,
                f"Process {one.pid} has the job's {one.path}: both would use the same memory.",
                "End it, or override with --force-gate gate-file-shared if the job has shared it "
                "with that process before.",
                one.pid,
            )


def links(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """CRIU looks for a carried file under a name of its own, which must be free until then."""
    for one in manifest.carried:
        if one.link and facts.names.get(one.link):
            yield blocker(
                "remap-in-the-way",
                one.link,
                f"A restore makes this name for {one.path}, and it is there already.",
                "Wait for dumps and restores that are at work (gpuckpt status). Then restore the "
                f"image of an older gpuckpt that needs it; if there is none: rm {one.link}",
            )


def folders(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What is made anew needs a folder with room, and a tmpfs has a limit of its own."""
    need: dict[str, int] = {}
    for one in facts.carried:
        made = one.state in {State.MISSING, State.STALE}
        if made or one.file.link:
            folder = folder_of(one.file.path)
            need[folder] = need.get(folder, 0) + (one.file.bytes if made else 0)
    for folder, bytes_ in need.items():
        room = facts.rooms.get(folder, bytes_)
        if room is None:
            yield blocker(
                "carried-folder",
                folder,
                f"Files that the image carries belong into {folder}, and it takes no names.",
                "Make the folder, or mount it writable.",
            )
        elif room < bytes_:
            yield blocker(
                "carried-room",
                folder,
                f"The files that the image carries need {size(bytes_)} in {folder}, and "
                f"{size(room)} are free.",
                f"Make room, or enlarge it: mount -o remount,size=... {folder}",
            )


def stale(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What the job itself wrote after the dump does not fit to the job as it was at the dump."""
    paths = [one.path for one in facts.carried if one.state is State.STALE]
    if paths:
        yield warning(
            "file-stale",
            some(paths),
            "The job's own memory has changed since the dump and nobody uses it: it is put back as "
            "it was.",
            "Keep a copy if you want to look at it.",
        )


RULES: Final[tuple[Rule, ...]] = (taken, shared, links, folders, stale)
