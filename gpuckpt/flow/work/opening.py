"""Opening an image wherever it lies: the one place where image and store meet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.image.distant import DistantOrigin
from gpuckpt.image.store import Image
from gpuckpt.tools.remote import Stores

if TYPE_CHECKING:
    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.location import Location


def open_image(place: Location, stores: StoresTool | None = None, *, trust: bool = True) -> Image:
    """Open the image at a path or URL; `trust` is about paths only (see Image.open).

    Raises:
        ImageError: there is none, or it cannot be read or trusted.
        NotPrivileged: this user may not read it.
        UsageError: nothing that is installed can talk to such a store.
    """
    if isinstance(place, Path):
        return Image.open(place, trust)
    folder = (stores or Stores()).folder(place)
    return Image.on(DistantOrigin(folder, place), place)
