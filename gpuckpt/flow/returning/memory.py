"""What of an image is the memory of which task, and where that is now.

A frame of a pages image is a row of stretches of one memory: that of a task, or one that several
tasks share, which is read through whoever has it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import field
from msgspec.structs import replace

from gpuckpt.errors import ImageDamaged
from gpuckpt.image.reading import StoredFile
from gpuckpt.tools.criuimage import FILES
from gpuckpt.tools.criumemory import (
    read_areas,
    read_descriptors,
    read_files_id,
    read_memfds,
    read_rseq,
)
from gpuckpt.tools.lawful import Laws
from gpuckpt.tools.pagemap import read_pagemap
from gpuckpt.tools.taskmemory import covering
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Mapping as Table

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.store import Image
    from gpuckpt.tools.criumemory import Area
    from gpuckpt.tools.pagemap import Pagemap
    from gpuckpt.tools.taskmemory import Memory

_SHARED: Final = "pagemap-shmem-"
_MEMFDS: Final = "memfd.img"


class Part(Value, frozen=True):
    """One pages image and the memory it must be equal to, read through process `pid`.

    `place` says, of memory that is shared, where that process shows it; of a task's own memory,
    `areas` are the mappings that it had.
    """

    pid: int
    file: StoredFile
    pagemap: Pagemap
    memory: Memory
    laws: Laws = field(default_factory=Laws)
    place: str = ""
    areas: tuple[Area, ...] = ()


class _Place(Value, frozen=True):
    """Where shared memory can be read."""

    pid: int
    words: str
    open: Callable[[], Memory]


class Parts(ExitStack):
    """All parts of an image; what of its pages is found nowhere is in `lost`. Close it."""

    def __init__(
        self,
        tools: Toolbox,
        image: Image,
        read: Callable[[str], bytes],
        pids: Table[int, int],
    ) -> None:
        """`read` gives CRIU's small images, `pids` what each task of them is on this host."""
        super().__init__()
        self._tools = tools
        self._image = image
        self._read = read
        self._pids = pids
        self._areas: dict[int, tuple[Area, ...]] = {}
        self.lost: list[str] = []

    def find(self, manifest: Manifest) -> list[Part]:
        """Open the memory of the tree of a manifest, by CRIU's numbers.

        Raises:
            ImageDamaged: the image does not say of every page whose it is.
            OSError: the memory of a task may not be read.
        """
        found = []
        for one in manifest.tree:
            if (name := f"pagemap-{one.pid}.img") in self._image.entries:
                laws = self._laws(one.pid, one.threads)
                memory = self._tools.memory.task(self._pids[one.pid])
                part = self._part(name, self._pids[one.pid], memory, laws)
                found.append(replace(part, areas=self._areas[one.pid]))
        shared = sorted(name for name in self._image.entries if name.startswith(_SHARED))
        if shared:
            found += self._shared(shared)
        return found

    def _laws(self, pid: int, threads: tuple[int, ...]) -> Laws:
        cores = (f"core-{tid}.img" for tid in threads)
        rseqs = (read_rseq(self._read(one)) for one in cores if one in self._image.entries)
        mm = f"mm-{pid}.img"
        self._areas[pid] = read_areas(self._read(mm)) if mm in self._image.entries else ()
        return Laws(self._areas[pid], [one for one in rseqs if one is not None])

    def _part(self, name: str, pid: int, memory: Memory, laws: Laws, place: str = "") -> Part:
        self.callback(memory.close)
        pagemap = read_pagemap(self._read(name), name)
        entry = self._image.entries.get(pagemap.pages)
        if (entry.raw_size if entry is not None else 0) != pagemap.runs.size or entry is None:
            raise ImageDamaged(f"{name} does not tell of just the pages that are in the image")
        file = StoredFile(self._image, entry)
        self.callback(file.close)
        return Part(pid, file, pagemap, memory, laws, place)

    def _shared(self, names: list[str]) -> Iterator[Part]:
        """Find the memory that several have, each through the first of them that shows it."""
        numbers = {int(one.removeprefix(_SHARED).removesuffix(".img")): one for one in names}
        places = self._places()
        for number, name in numbers.items():
            if (place := places.get(number)) is None:
                self.lost.append(name)
            else:
                memory = place.open()
                yield self._part(name, place.pid, memory, Laws(end=memory.end), place.words)

    def _places(self) -> dict[int, _Place]:
        """Return where shared memory is mapped or open, by its number."""
        memfds = self._memfds()
        found: dict[int, _Place] = {}
        for pid, areas in self._areas.items():
            here = self._pids[pid]
            mappings = self._tools.memory.mappings(here)
            for area in areas:
                number = memfds.get(area.memfd, 0) if area.memfd else area.shared
                mapping = covering(mappings, area.start)
                if number and number not in found and mapping is not None:
                    opener = partial(self._tools.memory.mapped, here, mapping)
                    found[number] = _Place(here, mapping.words, opener)
        for pid in self._areas if memfds.keys() - found.keys() else ():
            here = self._pids[pid]
            for file, fd in self._descriptors(pid).items():
                if (number := memfds.get(file, 0)) and number not in found:
                    opener = partial(self._tools.memory.opened, here, fd)
                    found[number] = _Place(here, f"descriptor {fd}", opener)
        return found

    def _memfds(self) -> dict[int, int]:
        """Return the number of the memory of each open memfd."""
        if _MEMFDS not in self._image.entries:
            return {}
        found = read_memfds(self._read(_MEMFDS), self._read(FILES))
        return {file: one.shared for one in found for file in one.files}

    def _descriptors(self, pid: int) -> dict[int, int]:
        ids = f"ids-{pid}.img"
        number = read_files_id(self._read(ids)) if ids in self._image.entries else 0
        table = f"fdinfo-{number}.img"
        return read_descriptors(self._read(table)) if table in self._image.entries else {}
