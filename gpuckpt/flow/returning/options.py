"""What a restore says to CRIU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.tools.criu import CriuOptions

if TYPE_CHECKING:
    from gpuckpt.image.manifest import Manifest


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
