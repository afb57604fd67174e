"""The names that CRIU will make for files without one, noted before it does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuckpt.flow.work.traces import Linked

if TYPE_CHECKING:
    from gpuckpt.flow.sight.look import Sight
    from gpuckpt.flow.work.toolbox import Toolbox


def linked(tools: Toolbox, sight: Sight) -> tuple[Linked, ...]:
    """Note where CRIU will make names for files without one, and which are there already."""
    if not sight.options.link_remap:
        return ()
    found = []
    space = sight.space
    for file in sight.facts.look.deleted:
        if file.links:
            path = file.path if space is None else space.reach(file.path)
            folder = os.path.dirname(path)  # noqa: PTH120 - it may hold any bytes
            before = tuple(one.path for one in tools.files.remaps(folder))
            found.append(Linked(folder=folder, device=file.device, inode=file.inode, before=before))
    return tuple(found)
