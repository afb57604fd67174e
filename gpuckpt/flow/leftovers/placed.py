"""What a restore has done to files where the job had its own: what of it is left, how it goes.

Each thing is known by what it was made from, so that undoing may be cut short and done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.model import warning
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.flow.work.traces import Placed
    from gpuckpt.model import Finding
    from gpuckpt.tools.cutting import Cut


REPAIR: Final = "`gpuckpt repair` puts it back."
SWEEP: Final = "`gpuckpt repair` removes it."


class LeftFiles(Value, frozen=True):
    """What a restore has done to files, and whether a job has them now."""

    placed: tuple[Placed, ...] = ()
    cuts: tuple[Cut, ...] = ()
    job_stands: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """Where today's bytes of files lie that a job has got as they were."""
        replaced = (other for one in self.placed if one.kept for _, other in one.aside)
        return (*(one.aside for one in self.cuts), *replaced)


def remaining(tools: Toolbox, placed: Iterable[Placed], *, job_stands: bool) -> tuple[str, ...]:
    """Return the names that are left to be removed; all of them unless the job has them."""
    found: list[str] = []
    for one in _files_first(placed):
        names = one.names if not job_stands else ()
        for path in (*names, *([one.link] if one.link else [])):
            now = tools.carried.identity(path)
            # a folder of which nothing is known was not there, and is removed only if it is empty
            new = one.folder and not one.inode
            if now is not None and (new or (now.device, now.inode) == (one.device, one.inode)):
                found.append(path)
        if not (job_stands and one.kept):
            pairs = (pair for pair in one.aside if job_stands or _free(tools, one, *pair))
            found += [other for _, other in pairs if tools.carried.identity(other) is not None]
        if one.spare and tools.carried.identity(one.spare) is not None:
            found.append(one.spare)
    return tuple(found)


def shortened(tools: Toolbox, cuts: Iterable[Cut], *, job_stands: bool) -> tuple[Cut, ...]:
    """Return the files that have to get their later bytes back."""
    wanted = () if job_stands else cuts
    return tuple(
        one
        for one in wanted
        if any(tools.carried.identity(name) is not None for name in (one.aside, one.fresh))
    )


def moved(placed: Iterable[Placed]) -> dict[str, str]:
    """Return what was moved aside: where it is, and where it was."""
    return {other: path for one in placed for path, other in one.aside}


def clear(
    tools: Toolbox, placed: Iterable[Placed], cuts: Iterable[Cut] = (), *, job_stands: bool
) -> None:
    """Remove what a restore has made; what it had moved is removed if the job has its names.

    What is kept for the user stays then; else everything is as it was.

    Raises:
        OSError: a name may not be removed.
    """
    listed = tuple(placed)
    folders = {path for one in listed if one.folder for path in one.names}
    aside = moved(listed)
    for path in remaining(tools, listed, job_stands=job_stands):
        if path in aside and not job_stands and tools.carried.identity(aside[path]) is None:
            tools.carried.move(path, aside[path])
        elif path in folders:
            tools.carried.remove_folder(path)
        else:
            tools.files.remove(path)
    for cut in shortened(tools, cuts, job_stands=job_stands):
        tools.carried.rejoin(cut)


def told(tools: Toolbox, left: LeftFiles) -> Iterator[Finding]:
    """Tell of each thing that is left."""
    aside = {} if left.job_stands else moved(left.placed)
    for path in remaining(tools, left.placed, job_stands=left.job_stands):
        if path in aside:
            reason = f"A restore that was never finished has moved it to {path}."
            yield warning("left-aside", aside[path], reason, REPAIR)
        else:
            reason = "A restore that was never finished has made it for the job; the image has it."
            yield warning("left-file", path, reason, SWEEP)
    for one in shortened(tools, left.cuts, job_stands=left.job_stands):
        reason = f"A restore that was never finished has put its later bytes into {one.aside}."
        yield warning("left-cut", one.path, reason, REPAIR)


def _free(tools: Toolbox, one: Placed, path: str, other: str) -> bool:
    """Whether what was moved can have its name again; with another's in its place, it stays."""
    now, then = tools.carried.identity(path), tools.carried.identity(other)
    if now is None or then is None:
        return True
    here = now.device, now.inode
    return here in {(one.device, one.inode), (then.device, then.inode)}


def lasting(tools: Toolbox, placed: Iterable[Placed]) -> tuple[Placed, ...]:
    """Return what outlives a boot and must be undone, by the device that it is on now.

    What was only made is no harm: the next restore finds it as it belongs.
    """
    found: list[Placed] = []
    for one in placed:
        pair = one.aside[0] if one.kept else ("", "")
        now = tools.carried.identity(pair[0]) or tools.carried.identity(pair[1])
        if one.kept and now is not None:
            found.append(replace(one, device=now.device))
    return tuple(found)


def lasting_cuts(tools: Toolbox, cuts: Iterable[Cut]) -> tuple[Cut, ...]:
    """Return them by the device that each is on now: after a boot that may be another."""
    known = ((one, tools.carried.identity(one.path)) for one in cuts)
    return tuple(replace(one, device=now.device) for one, now in known if now is not None)


def _files_first(placed: Iterable[Placed]) -> Iterator[Placed]:
    """Folders go last, the innermost first."""
    listed = tuple(placed)
    yield from (one for one in listed if not one.folder)
    yield from (one for one in reversed(listed) if one.folder)
