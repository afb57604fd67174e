"""Names that the job's Unix sockets are bound to again, and who has them on this host now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuckpt.flow.returning.target.ports import processes
from gpuckpt.tools.pidspace import own_memory
from gpuckpt.tools.unixnames import SocketName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Process


def taken_names(
    tools: Toolbox, manifest: Manifest, *, apart: bool
) -> dict[SocketName, Process | None]:
    """Return the names in use, each with a process that has it, as far as that can be seen."""
    users = tools.net.unix_users(_names(manifest, apart=apart))
    known = {name: processes(tools, pids) for name, pids in users.items()}
    return {name: found[0] if found else None for name, found in known.items()}


def _names(manifest: Manifest, *, apart: bool) -> Iterator[SocketName]:
    """Go through what is bound where others see it; `apart`, some get names of their own."""
    # older images list servers outside the job among them
    for path in sorted({*manifest.outside.sockets} - {*manifest.outside.servers}):
        if not (apart and own_memory(path)):
            yield SocketName(os.fsencode(path))
    for one in manifest.outside.names:
        name = SocketName(one.name, one.kind)
        if not (apart and name.drivers):
            yield name
