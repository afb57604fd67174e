"""The folders that names are made in, or the nearest ones above them that are there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest


def folder_of(path: str) -> str:
    """Return the folder a path is in."""
    return os.path.dirname(path)  # noqa: PTH120 - paths may hold any bytes


def made_in(tools: Toolbox, manifest: Manifest, folder: str) -> str:
    """Return the folder, or the nearest above it that is there, if a restore makes the others."""
    known = {one.path for one in manifest.outside.folders}
    while folder in known and tools.carried.identity(folder) is None:
        folder = folder_of(folder)
    return folder


def makeable(tools: Toolbox, folder: str) -> bool:
    """Whether names can be made in a folder, or it itself in the nearest one that is there.

    CRIU 4.2.1 makes the folders of a ghost and removes them again.
    """
    while folder != "/" and tools.files.look(folder, build_id=False) is None:
        folder = folder_of(folder)
    return tools.files.writable(folder)
