"""The folders in which a restore makes names: those in /tmp and /dev/shm go with a boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.image.outside import FolderRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.tools.pidspace import Space


def folders(
    tools: Toolbox, paths: Iterable[str], space: Space | None = None
) -> tuple[FolderRecord, ...]:
    """Return the folders above these paths of a job, in `space`, as they can be made again.

    Where a link is on the way, none of a path: it may lead elsewhere on another host.
    """
    seen: dict[str, FolderRecord | None] = {}
    found: dict[str, FolderRecord] = {}
    for path in paths:
        chain: list[FolderRecord] = []
        for folder in _above(path):
            if folder not in seen:  # thousands of files may lie in one folder
                seen[folder] = _record(tools, folder, space)
            known = seen[folder]
            if known is None:
                break
            chain.append(known)
        else:
            found |= {one.path: one for one in chain}
    return tuple(found[path] for path in sorted(found))


def _record(tools: Toolbox, folder: str, space: Space | None) -> FolderRecord | None:
    now = tools.carried.identity(space.reach(folder) if space else folder)
    if now is None or not now.folder:
        return None
    return FolderRecord(path=folder, mode=now.mode, uid=now.uid, gid=now.gid)


def _above(path: str) -> Iterator[str]:
    """Give all folders a path lies in but the root, outermost first; none if it is no path."""
    parts = path.split("/")[1:-1] if path.startswith("/") else []
    yield from ("/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1))
