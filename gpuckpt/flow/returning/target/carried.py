"""Rules about the files that an image carries: what of their plan must not, or may be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.returning.target.fileplan import Act, journals
from gpuckpt.flow.returning.target.ground import folder_of
from gpuckpt.flow.returning.target.rule import Rule, some
from gpuckpt.flow.returning.target.standing import State
from gpuckpt.flow.sight.rules.rule import size
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.returning.target.standing import Standing
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


def changed(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What the job has written may have been changed by whom it belongs to: that is his choice."""
    for step in facts.steps:
        one = step.standing
        if step.act is Act.REFUSE and one is not None and one.state is State.CHANGED:
            if one.writes:
                continue  # in_use tells
            yield blocker(
                "file-changed",
                one.path,
                f"The image carries the job's {one.path}, and it has changed since: {one.why}.",
                "Choose: --files replace puts the image's there and keeps today's beside it, "
                "--files keep lets the job go on with today's."
                if _may_stay(manifest, one)
                else "Choose --files replace: the image's is put there and today's kept beside it.",
            )


def in_use(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Who writes to a file does not expect it to become shorter, or another one."""
    for step in facts.steps:
        one = step.standing
        if one is None or not one.writes:
            continue
        if step.act is Act.REFUSE and one.state is not State.TAKEN:
            yield blocker(
                "file-in-use",
                one.path,
                f"{one.path} is not as it was at the dump, and process {one.pid} writes to it.",
                "End it, or let the job go on with the file as it is: --files keep."
                if _may_stay(manifest, one)
                else "End it.",
                one.pid,
            )
        elif step.act is Act.LEAVE and one.state is State.GROWN:
            yield warning(
                "file-in-use",
                one.path,
                f"{one.path} has grown since the dump and process {one.pid} writes to it: the job "
                "goes on at its end.",
                "Nothing to do, if both may write to it.",
                one.pid,
            )


def journal(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """SQLite plays back what lies beside its file, be that the file of another time."""
    for path in journals(manifest, facts.steps):
        if facts.names.get(path):
            yield blocker(
                "gate-file-journal",
                path,
                f"{path} has come since the dump: SQLite would play it into the file beside it, "
                "which a restore puts back as it was.",
                f"Put it aside: mv -n {path} {path}.later, or override with --force-gate "
                "gate-file-journal if it is none of SQLite.",
            )


def _may_stay(manifest: Manifest, one: Standing) -> bool:
    """Whether a restore can go on with a file as it is: CRIU compares sizes, but those of logs."""
    sizes = {record.path: record.size for record in manifest.outside.files}
    return all(sizes.get(name) in {None, one.size} for name in one.file.names)


def kept(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """The job remembers the file as it was."""
    paths = [
        step.path
        for step in facts.steps
        if step.act is Act.LEAVE
        and step.standing is not None
        and step.standing.state in {State.CHANGED, State.GROWN}
        and not step.standing.writes
    ]
    if paths:
        yield warning(
            "file-kept",
            some(paths),
            "The job goes on with what is in it now (--files keep), and remembers what was.",
            "Look whether it copes with that.",
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
    for step in facts.steps:
        one = step.standing
        if one is not None and (step.bytes or step.made or one.file.link):
            folder = folder_of(one.file.path)
            need[folder] = need.get(folder, 0) + step.bytes
    for folder, bytes_ in need.items():
        room = facts.rooms.get(folder, bytes_)
        if room is None:
            yield blocker(
                "carried-folder",
                folder,
                f"Files that the image carries belong into {folder}, and it takes no names.",
                "Make the folder, or mount it writable; links of other users are not followed.",
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


RULES: Final[tuple[Rule, ...]] = (
    *(taken, changed, in_use, journal, kept, shared, links, folders, stale),
)
