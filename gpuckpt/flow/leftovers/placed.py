"""What a restore has put where the job had its files: what of it is left, and how it goes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.work.journal import Placed
    from gpuckpt.flow.work.toolbox import Toolbox


def remaining(tools: Toolbox, placed: Iterable[Placed], *, job_stands: bool) -> tuple[str, ...]:
    """Return the names that are left to be removed; all of them unless the job has them."""
    found: list[str] = []
    for one in _files_first(placed):
        names = one.names if not job_stands else ()
        for path in (*names, *([one.link] if one.link else [])):
            now = tools.carried.identity(path)
            if now is not None and (now.device, now.inode) == (one.device, one.inode):
                found.append(path)
        found += [other for _, other in one.aside if tools.carried.identity(other) is not None]
    return tuple(found)


def clear(tools: Toolbox, placed: Iterable[Placed], *, job_stands: bool) -> None:
    """Remove what a restore has made; what it had moved is removed if the job has its names.

    Raises:
        OSError: a name may not be removed.
    """
    listed = tuple(placed)
    folders = {path for one in listed if one.folder for path in one.names}
    aside = {other: path for one in listed for path, other in one.aside}
    for path in remaining(tools, listed, job_stands=job_stands):
        if path in aside and not job_stands and tools.carried.identity(aside[path]) is None:
            tools.carried.move(path, aside[path])
        elif path in folders:
            tools.carried.remove_folder(path)
        else:
            tools.files.remove(path)


def _files_first(placed: Iterable[Placed]) -> list[Placed]:
    """Folders go last, the innermost first."""
    listed = tuple(placed)
    return [
        *(one for one in listed if not one.folder),
        *(one for one in reversed(listed) if one.folder),
    ]
