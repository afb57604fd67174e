"""A job whose files lie elsewhere on this host: its image, read with the paths of here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import UsageError
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image.relocate import Relocation
from gpuckpt.tools.criuimage import FILES, relocated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuckpt.flow.request import RestoreRequest
    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.store import Image

    Changes = Mapping[str, Callable[[bytes], bytes]]


def opened(request: RestoreRequest, stores: StoresTool) -> Image:
    """Open the image of a restore, with the paths of here.

    Raises:
        ImageError: there is none that can be used.
        UsageError: --map-path cannot be meant.
    """
    image = open_image(request.image, stores)
    image.manifest = mapped(image.manifest, request.map_path)
    return image


def mapped(manifest: Manifest, pairs: tuple[tuple[str, str], ...]) -> Manifest:
    """Return the manifest as --map-path has it.

    Raises:
        UsageError: that cannot be meant.
    """
    moves = Relocation(pairs)
    if unused := moves.unused(manifest):
        raise UsageError(
            f"--map-path: no path of the image is {unused[0]} or below it",
            hint="`gpuckpt show IMAGE --json` lists what the job uses.",
        )
    if moves and (crowded := moves.crowded(manifest)):
        raise UsageError(
            f"--map-path: two paths of the image would both be {crowded[0]}",
            hint="Map each folder to one of its own.",
        )
    return moves.manifest(manifest)


def on_the_way(
    pairs: tuple[tuple[str, str], ...], others: Changes
) -> dict[str, Callable[[bytes], bytes]]:
    """Return what is done to CRIU's images on their way, after and with what `others` do."""
    if not pairs:
        return dict(others)
    moves = Relocation(pairs)
    then = others.get(FILES)

    def change(raw: bytes) -> bytes:
        moved = relocated(raw, moves.path)
        return then(moved) if then is not None else moved

    return {**others, FILES: change}
