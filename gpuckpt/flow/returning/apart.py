"""A pid namespace of its own for the job of one restore: made before CRIU runs, gone if it fails.

CRIU gives the tasks the numbers they had, inside. Everything else is done from outside, by the
numbers they have here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.request import Inside
from gpuckpt.flow.work.tasks import below_me, inhabitants
from gpuckpt.image.renumber import renumbered
from gpuckpt.tools.criuimage import FILES, rename_sockets
from gpuckpt.tools.pidspace import NewSpace
from gpuckpt.tools.unixnames import SocketName, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import ProcessRef
    from gpuckpt.tools.pidspace import Space


class Apart:
    """The namespace of one restore, if one is `wanted`; `space` is None until it is there."""

    def __init__(self, tools: Toolbox, *, wanted: bool) -> None:
        """Make nothing yet."""
        self.tools = tools
        self.wanted = wanted
        self.space: Space | None = None
        self._renamed: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether the job gets pids of its own."""
        return self.wanted

    def place(self, manifest: Manifest, ready: Callable[[Space], None]) -> NewSpace | None:
        """Return what is to be made, if it is wanted; `ready` is called while nothing is in it."""
        return NewSpace(manifest.root_pid, manifest.ids, ready) if self.wanted else None

    def changes(self) -> dict[str, Callable[[bytes], bytes]]:
        """Return what has to be changed in CRIU's images for the job to be there a second time."""
        return {FILES: self._rename} if self.wanted else {}

    def _rename(self, files: bytes) -> bytes:
        """Give the CUDA driver's sockets the names that it would have given them in here.

        Those that share GPU memory make up such a name from the number of their own namespace, and
        no two have the same. All other names mean something to somebody, and stay.
        """
        number = self.tools.spaces.number(self.space) if self.space is not None else 0

        def name(raw: bytes) -> bytes:
            new = moved(raw, number)
            if new != raw:
                self._renamed[SocketName(raw).words] = SocketName(new).words
            return new

        return rename_sockets(files, name)

    def seen(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the numbers that its tasks have on this host.

        Raises:
            RestoreFailed: one of them was not made.
        """
        if self.space is None:
            return manifest
        numbers = self.tools.spaces.numbers(self.space)
        here = {inside: outside for outside, inside in numbers.items()}
        made = {
            number
            for one in manifest.tree
            for number in (one.pid, *one.threads, one.restore_thread or one.pid)
        }
        if lost := sorted(made - here.keys()):
            raise RestoreFailed(f"CRIU made another tree: it has no task {lost[0]}")
        return renumbered(manifest, here)

    def refs(self, pids: Iterable[int]) -> tuple[ProcessRef, ...]:
        """Return what was made: all that is in the namespace, or those of the pids below us."""
        if not self.wanted:
            return below_me(self.tools, pids)
        return inhabitants(self.tools, self.space.init) if self.space is not None else ()

    def inside(self, manifest: Manifest) -> Inside | None:
        """Return the namespace with the numbers in it, which are those of the image."""
        if self.space is None:
            return None
        pids = tuple(process.pid for process in manifest.tree)
        return Inside(self.space.init.pid, manifest.root_pid, pids, self._renamed)
