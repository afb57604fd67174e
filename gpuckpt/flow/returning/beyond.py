"""The other half of a proof: nothing stands in a restored task where its image has nothing.

A page that is in no image is one that was never written, and must read as zeros, or as the file
that is mapped there. The kernel fills some with zeros before anybody writes: the rest of a huge
page, say; and of a locked mapping of a file (mlockall) CRIU 4.2.1 leaves copies of all pages.
"""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.work.cores import PIECE, on_all_cores
from gpuckpt.flow.work.stretches import common, minus
from gpuckpt.model import warning
from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.taskmemory import covering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuckpt.flow.returning.memory import Part
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.stretches import Stretch
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding
    from gpuckpt.tools.taskmemory import Mapping

_MOST_TOLD: Final = 20
_ZEROS: Final = bytes(PIECE)


class Beyond:
    """What tasks have that no image knows; `bytes` of it were read."""

    def __init__(self, tools: Toolbox) -> None:
        """Have looked at nothing yet."""
        self._tools = tools
        self._lock = threading.Lock()
        self._found: list[tuple[int, int]] = []  # pid and address
        self.bytes = 0

    def run(self, parts: Iterable[Part], interrupts: Interrupts) -> tuple[Finding, ...]:
        """Read all of it, on all cores; return a warning for each place where something stands.

        Raises:
            Interrupted: a signal came.
        """
        try:
            pieces = [(part, one) for part in parts for one in self._pieces(part)]
        except OSError as why:  # before Linux 6.7
            return (_unknown(why),)
        tasks: Iterator[Callable[[memoryview], None]] = (
            partial(self._look, part, start, end) for part, (start, end) in pieces
        )
        on_all_cores(tasks, interrupts)
        return tuple(self._surplus(*one) for one in sorted(self._found)[:_MOST_TOLD])

    def _pieces(self, part: Part) -> Iterator[Stretch]:
        areas = [(one.start, one.end) for one in part.areas if not one.kernel]
        if not areas:
            return
        there = common(self._tools.memory.populated(part.pid), areas)
        for start, end in minus(there, part.pagemap.runs.stretches()):
            for at in range(start, end, PIECE):
                yield at, min(end, at + PIECE)

    def _look(self, part: Part, start: int, end: int, view: memoryview) -> None:
        read = part.memory.fill(view, [(start, end - start)])
        now = view[:read].tobytes()
        with self._lock:
            self.bytes += read
        if now == _ZEROS[:read]:
            return
        files = self._of_files(part.pid, start, start + read)
        for at in range(0, read, PAGE):
            page = now[at : at + PAGE]
            if any(page) and page != files[at : at + PAGE]:
                with self._lock:
                    self._found.append((part.pid, start + at))

    def _of_files(self, pid: int, start: int, end: int) -> bytes:
        """Return what the files have that are mapped there privately, zeros where there is none."""
        found, at = memoryview(bytearray(end - start)), start
        mappings = self._tools.memory.mappings(pid)
        while at < end:
            mapping = covering(mappings, at)
            until = min(end, at + PAGE if mapping is None else mapping.end)
            if mapping is not None and _of_file(mapping):
                there = mapping.offset + at - mapping.start, until - at
                with suppress(OSError), closing(self._tools.memory.mapped(pid, mapping)) as file:
                    file.fill(found[at - start : until - start], [there])
            at = until
        return found.tobytes()

    def _surplus(self, pid: int, address: int) -> Finding:
        mapping = covering(self._tools.memory.mappings(pid), address)
        what = mapping.words if mapping is not None else "not mapped now"
        return warning(
            "memory-surplus",
            f"pid {pid} {address:#x}",
            f"The page at {address:#x} ({what}) of process {pid} is in no image and not empty.",
            "Look at what the job computes; it had zeros there when it was dumped.",
            pid,
        )


def _of_file(mapping: Mapping) -> bool:
    return mapping.access.endswith("p") and mapping.name.startswith("/")


def _unknown(why: OSError) -> Finding:
    return warning(
        "memory-beyond-unproved",
        "pages in no image",
        f"The kernel does not tell which other pages the tasks have: {why.strerror}.",
        "Linux 6.7 or newer does; the pages of the image itself are proved.",
    )
