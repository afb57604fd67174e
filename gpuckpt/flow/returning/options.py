"""What a restore says to CRIU, and what CRIU's numbers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.image.unpack import Unpacker
from gpuckpt.tools.criuimage import FILES
from gpuckpt.tools.criunames import Names, recorded
from gpuckpt.tools.criurun import CriuOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.store import Image


def repeated(manifest: Manifest) -> CriuOptions:
    """Return what a restore says to CRIU: just what the dump had said."""
    options = manifest.options
    return CriuOptions(
        tcp=options.tcp,
        file_locks=options.file_locks,
        shell_job=options.shell_job,
        link_remap=options.link_remap,
        external_unix=options.external_unix,
        stand_ins=frozenset() if options.stand_ins else None,
    )


def names_in(image: Image, changes: Mapping[str, Callable[[bytes], bytes]]) -> Names:
    """Return names for what CRIU calls by numbers, as it has got them."""
    commands = {process.pid: process.comm for process in image.manifest.tree}
    unpacker = Unpacker(image, workers=1)
    try:
        raw = unpacker.read(FILES)
        return recorded(commands, changes[FILES](raw) if FILES in changes else raw)
    except GpuckptError:  # something else is worse: the failure is told without names
        return Names(processes=commands)
    finally:
        unpacker.close()
