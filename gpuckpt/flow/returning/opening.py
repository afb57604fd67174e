"""An image opened to be judged, not to be restored: what is wrong with it is a finding as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import ImageDamaged, ImageUntrusted
from gpuckpt.flow.work.opening import open_image
from gpuckpt.model import blocker
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.errors import GpuckptError
    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location
    from gpuckpt.model import Finding


class Opened(Value, frozen=True):
    """What is known of an image: its manifest, and the error that a restore would end in at once.

    `findings` say the same.
    """

    path: Location
    manifest: Manifest
    error: GpuckptError | None = None
    findings: tuple[Finding, ...] = ()


def examined(path: Location, stores: StoresTool | None = None) -> Opened:
    """Look at an image by its manifest and the sizes of its files.

    Raises:
        ImageError: there is no image, or its manifest cannot be read.
        NotPrivileged: this user may not read it.
    """
    try:
        image = open_image(path, stores)
    except ImageUntrusted as why:
        # be it by distrust: what else is wrong is worth knowing at once
        with open_image(path, trust=False) as image:
            return Opened(path, image.manifest, why, (_untrusted(path, why),))
    with image:
        try:
            image.check_sizes()
        except ImageDamaged as why:
            return Opened(path, image.manifest, why, why.findings)
        except ImageUntrusted as why:
            return Opened(path, image.manifest, why, why.findings or (_untrusted(path, why),))
        return Opened(path, image.manifest)


def _untrusted(path: Location, why: ImageUntrusted) -> Finding:
    return blocker("image-untrusted", str(path), f"{why.message}.", why.hint)
