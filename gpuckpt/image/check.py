"""Looking at every byte of an image: all damage at once, nothing believed, nothing executed."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.image import names
from gpuckpt.image.crew import Crew, cores
from gpuckpt.image.damage import Damage, Damaged
from gpuckpt.image.memory import Budget, keep_freed_memory
from gpuckpt.image.reading import StoredFile
from gpuckpt.image.store import stored_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.image.frames import Frame
    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.store import Image

MEMORY = 160 << 20
_MOST_SURPLUS = 1000
_TOP = frozenset({names.MANIFEST, names.CRIU_DIR, names.LOGS_DIR, names.OWNER})


def check_files(
    image: Image,
    on_bytes: Callable[[int], None] = lambda _: None,
    workers: int | None = None,
    memory: int = MEMORY,
) -> tuple[Damage, ...]:
    """Return everything that is wrong with the files of `image`, in the manifest's order.

    `on_bytes` is told of stored bytes as they are read, from this thread; what it raises ends
    the check. `memory` bounds all buffers together.

    Raises:
        ImageUntrusted: others could have written a file.
    """
    keep_freed_memory()
    checker = _Checker(image, on_bytes, Crew("check", workers or cores()), Budget(memory))
    try:
        for entry in image.manifest.files:
            checker.check(entry)
    finally:
        checker.crew.dismiss()
    return (*checker.damages(), *_surplus(image))


class _Checker:
    def __init__(
        self, image: Image, on_bytes: Callable[[int], None], crew: Crew, budget: Budget
    ) -> None:
        self.crew = crew
        self._image = image
        self._on_bytes = on_bytes
        self._budget = budget
        self._found: defaultdict[str, list[Damage]] = defaultdict(list)
        self._changed: set[str] = set()

    def check(self, entry: FileEntry) -> None:
        """Check one file; the crew unpacks its frames while the next ones are read."""
        try:
            file = StoredFile(self._image, entry)
            try:
                self._read(file)
            finally:
                file.close()
        except Damaged as why:
            self._found[entry.name].append(why.damage)

    def damages(self) -> Iterator[Damage]:
        """Yield what was found, once the crew is through."""
        for entry in self._image.manifest.files:
            found = self._found[entry.name]
            if not found and entry.name in self._changed:
                yield stored_damage(entry, "it does not have the digest it was stored with")
            yield from sorted(found, key=lambda damage: damage.frame or 0)

    def _read(self, file: StoredFile) -> None:
        # format 1 has one digest of it all; on all cores: this one thread feeds the whole crew
        whole = blake3(max_threads=blake3.AUTO) if file.entry.stored_blake3 else None
        for frame in file.table:
            cost = frame.stored + frame.raw
            self._budget.take(cost)
            stored = bytes(file.stored(frame))
            if whole:
                whole.update(stored)
            self.crew.do(partial(self._unpack, file, frame, stored, cost))
            self._on_bytes(frame.stored)
        self._on_bytes(len(file.table.data))
        if whole and whole.update(file.table.data).hexdigest() != file.entry.stored_blake3:
            self._changed.add(file.entry.name)

    def _unpack(self, file: StoredFile, frame: Frame, stored: bytes, cost: int) -> None:
        try:
            file.raw(frame, stored)
            if file.table.version > 1:
                file.check_stored(frame, stored)
        except Damaged as why:
            self._found[file.entry.name].append(why.damage)
        finally:
            self._budget.give(cost)


def _surplus(image: Image) -> Iterator[Damage]:
    """Yield what lies in the image and does not belong to it; logs may be anything."""
    expected = {names.stored_name(name) for name in image.entries}
    for folder, fd, known in (
        ("", image.fd, _TOP),
        (f"{names.CRIU_DIR}/", image.criu_fd, expected),
    ):
        with os.scandir(fd) as entries:
            surplus = (entry.name for entry in entries if entry.name not in known)
            for name in islice(surplus, _MOST_SURPLUS):
                yield Damage(f"{folder}{name}", "it does not belong to the image")
