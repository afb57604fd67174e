"""show: what an image holds, where it comes from and what a restore of it needs.

Looking is allowed where restoring is not: an image of another user, one with needs this gpuckpt
does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuckpt.image.manifest import unknown_needs
from gpuckpt.image.store import Image

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ShowResult:
    """An image's manifest; `unknown_needs` are why this gpuckpt could not restore it."""

    manifest: Manifest
    path: Path
    unknown_needs: tuple[str, ...]


def show(path: Path) -> ShowResult:
    """Read the manifest of an image.

    Raises:
        ImageError: there is no image, or its manifest cannot be read.
        NotPrivileged: this user may not read it.
    """
    with Image.open(path, trust=False) as image:
        return ShowResult(image.manifest, image.path, unknown_needs(image.manifest))
