"""Where a job went whose parent we are: into the image of a dump, or to its end."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image import names
from gpuckpt.location import Url, is_url

if TYPE_CHECKING:
    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox


def told(image: str) -> str:
    """Say it to whoever waits for the job."""
    return f"the job was dumped; `gpuckpt restore {image}` brings it back"


def dump_of(state_dir: Path, pid: int) -> Entry | None:
    """Return the dump that is at work on a process, if there is one."""
    with suppress(OSError):  # only root may look there
        for entry in Journal(state_dir).entries():
            if entry.operation == "dump" and pid in {ref.pid for ref in entry.processes}:
                return entry
    return None


class Departure:
    """The last dump that was seen at work on a job; to be looked at while somebody waits for it.

    The process 1 of a pid namespace ends a moment after the job: the dump may be over by then.
    """

    def __init__(self, tools: Toolbox, pid: int) -> None:
        """Watch the job of this root."""
        self._tools = tools
        self._root = tools.proc.process(pid)
        self._image = ""

    def look(self) -> None:
        """See whether a dump is at work; one that was, and left the job alive, is forgotten."""
        if self._root is None:
            return
        entry = dump_of(self._tools.state_dir, self._root.pid)
        if entry is not None:
            self._image = entry.image
        elif self._tools.proc.alive(self._root.ref):
            self._image = ""

    @property
    def image(self) -> str:
        """The image that the job went into, empty if it did not."""
        return self._image if self._image and self._whole() else ""

    def _whole(self) -> bool:
        if not is_url(self._image):
            return (Path(self._image) / names.MANIFEST).exists()
        with suppress(GpuckptError), closing(self._tools.stores.folder(Url(self._image))) as there:
            return names.MANIFEST in there.names()
        return False
