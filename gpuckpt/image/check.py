"""Looking at every byte of an image: all damage at once, nothing believed, nothing executed."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.image.buffers import Buffers, room_for
from gpuckpt.image.crew import Countdown, Crew, cores
from gpuckpt.image.damage import Damage, Damaged, stored_damage
from gpuckpt.image.frames import FRAME_SIZE
from gpuckpt.image.reading import StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gpuckpt.image.buffers import Buffer
    from gpuckpt.image.frames import Frame
    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.store import Image

MEMORY = 160 << 20
_MOST_SURPLUS = 1000


def check_files(
    image: Image,
    on_bytes: Callable[[int], None] = lambda _: None,
    workers: int | None = None,
    memory: int = MEMORY,
    only: Collection[FileEntry] | None = None,
) -> tuple[Damage, ...]:
    """Return everything that is wrong with the files of `image`, in the manifest's order.

    Or with some of them, if `only` says with which.

    `on_bytes` is told of stored bytes as their turn comes, from this thread; what it raises ends
    the check. `memory` bounds all buffers together.

    Raises:
        ImageUntrusted: others could have written a file.
        Exception: something could not be looked at, for want of memory say.
    """
    each = room_for(FRAME_SIZE)
    # more than cores: what is not in the page cache is waited for
    crew = Crew("check", min(workers or cores() + 2, max(1, memory // 2 // each)))
    # few: a buffer that was used a moment ago is still in the CPU's cache
    buffers = Buffers(min(memory - crew.size * each, (crew.size + 2) * each))
    checker = _Checker(image, on_bytes, crew, buffers)
    try:
        for entry in image.manifest.files if only is None else only:
            checker.check(entry)
    finally:
        crew.dismiss()
    return (*checker.damages(), *(_surplus(image) if only is None else ()))


class _Checker:
    def __init__(
        self, image: Image, on_bytes: Callable[[int], None], crew: Crew, buffers: Buffers
    ) -> None:
        self._crew = crew
        self._image = image
        self._on_bytes = on_bytes
        self._buffers = buffers
        self._found: defaultdict[str, list[Damage]] = defaultdict(list)
        self._changed: set[str] = set()
        self._failed: list[Exception] = []

    def check(self, entry: FileEntry) -> None:
        """Have one file checked; the crew does it while the next ones are opened."""
        if self._failed:
            return
        try:
            file = StoredFile(self._image, entry)
        except Damaged as why:
            self._found[entry.name].append(why.damage)
            return
        left = len(file.table) + 1
        done = Countdown(left, file.close)
        try:
            for look in self._looks(file, done):
                self._crew.do(look)
                left -= 1
                if self._failed:  # a store that is gone is asked for no more
                    break
        except Damaged as why:
            self._found[entry.name].append(why.damage)
        finally:
            for _ in range(left):
                done()

    def damages(self) -> Iterator[Damage]:
        """Yield what was found, once the crew is through; what nobody looked at is not sound."""
        if self._failed:
            raise self._failed[0]
        for entry in self._image.manifest.files:
            found = self._found[entry.name]
            if not found and entry.name in self._changed:
                yield stored_damage(entry, "it does not have the digest it was stored with")
            yield from sorted(found, key=lambda damage: damage.frame or 0)

    def _looks(self, file: StoredFile, done: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """Yield the work for each frame."""
        # Format 1 has one digest of it all, which takes the frames in their order.
        whole = blake3(max_threads=blake3.AUTO) if file.entry.stored_blake3 else None
        for frame in file.table:
            buffer = self._buffers.take(room_for(frame.raw))
            stored = None
            if whole:
                try:
                    stored = file.stored(frame, buffer.view)
                except BaseException:
                    self._buffers.give(buffer)
                    raise
                whole.update(stored)
            yield partial(self._look, file, frame, buffer, stored, done)
            self._on_bytes(frame.stored)
        self._on_bytes(len(file.table.data))
        if whole and whole.update(file.table.data).hexdigest() != file.entry.stored_blake3:
            self._changed.add(file.entry.name)

    def _look(
        self,
        file: StoredFile,
        frame: Frame,
        buffer: Buffer,
        stored: memoryview | None,
        done: Callable[[], None],
    ) -> None:
        try:
            if self._failed:
                return
            if stored is None:
                stored = file.stored(frame, buffer.view)
            file.prove(frame, stored)
            if file.table.version > 1:
                file.check_stored(frame, stored)
        except Damaged as why:
            self._found[file.entry.name].append(why.damage)
        except Exception as why:  # noqa: BLE001 - raised again when the crew is through
            self._failed.append(why)
        finally:
            self._buffers.give(buffer)
            done()


def _surplus(image: Image) -> Iterator[Damage]:
    """Yield what lies in the image and does not belong to it."""
    for name in islice(image.strays(), _MOST_SURPLUS):
        yield Damage(name, "it does not belong to the image")
