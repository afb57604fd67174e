"""Opening an image wherever it lies: the one place where image and store meet."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.image import sealed
from gpuckpt.image.distant import DistantOrigin
from gpuckpt.image.local import LocalOrigin
from gpuckpt.image.store import Image
from gpuckpt.tools.remote import Stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.origin import Origin
    from gpuckpt.location import Location


def open_image(
    place: Location,
    stores: StoresTool | None = None,
    *,
    trust: bool = True,
    check: Callable[[], None] = lambda: None,
) -> Image:
    """Open the image at a path or URL; `trust` is about paths only (see Image.open).

    Whoever waits for a store calls `check`, which may raise.

    Raises:
        ImageError: there is none, or it cannot be read or trusted.
        NotPrivileged: this user may not read it.
        UsageError: nothing that is installed can talk to such a store.
    """
    return Image.on(_origin(place, stores, check, trust=trust), place)


def read_manifest(place: Location, stores: StoresTool | None = None) -> Manifest:
    """Return the manifest alone: it may say what was dumped where the rest is not there any more.

    Raises:
        ImageError, NotPrivileged, UsageError: as in `open_image`.
    """
    with closing(_origin(place, stores, lambda: None, trust=True)) as origin:
        return sealed.decode(origin.manifest())


def _origin(
    place: Location, stores: StoresTool | None, check: Callable[[], None], *, trust: bool
) -> Origin:
    if isinstance(place, Path):
        return LocalOrigin(place, trust=trust)
    return DistantOrigin((stores or Stores()).folder(place), place, check=check)
