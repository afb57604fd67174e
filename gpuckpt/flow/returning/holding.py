"""Silence for the job's TCP connections from before CRIU makes them until all of them stand.

CRIU (4.2.1) sends what was still to be sent while it makes a socket; if its other end, in the
same tree, is not there yet, the kernel answers with a reset and the connection is lost. The filter
that CRIU leaves at a dump prevents that, but a boot, another host and a second restore have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.leftovers.found import table_of
from gpuckpt.model import TcpPolicy
from gpuckpt.tools.addresses import ends

if TYPE_CHECKING:
    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.flow.work.undo import Undo
    from gpuckpt.image.manifest import Manifest


class Holding:
    """The packet filter of one restore."""

    def __init__(self, tools: Toolbox, manifest: Manifest, entry: Entry) -> None:
        """Touch nothing yet."""
        self._tools = tools
        self._name = table_of(entry)
        kept = manifest.options.tcp is TcpPolicy.ESTABLISHED
        self._ends = tuple(map(ends, manifest.outside.connections)) if kept else ()

    def take(self, undo: Undo) -> None:
        """Hold the connections back, if there are any.

        Raises:
            RestoreFailed: the kernel refused.
        """
        if not self._ends:
            return
        undo.add(f"the packet filter table {self._name} is left", self._release)
        try:
            self._tools.net.hold(self._name, self._ends)
        except OSError as why:
            raise RestoreFailed(
                f"the job's TCP connections cannot be held back meanwhile: {why}",
                hint="The kernel must have nftables, and this process CAP_NET_ADMIN.",
            ) from why

    def release(self) -> None:
        """Let them talk: both ends stand, and none of them has said anything yet.

        Raises:
            RestoreFailed: the kernel refused.
        """
        try:
            self._release()
        except OSError as why:
            raise RestoreFailed(f"the job's TCP connections stay held back: {why}") from why

    def _release(self) -> None:
        if self._ends:
            self._tools.net.release(self._name)
