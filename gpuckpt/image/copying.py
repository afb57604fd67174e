"""Copying the stored files of an image byte by byte, side by side, large ones in pieces.

Nothing is proved here: what has arrived is read back from where it is, and compared with the
digests, before it becomes an image (see gpuckpt.flow.copy).
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from gpuckpt.image.buffers import BLOCK, Buffers
from gpuckpt.image.crew import Countdown, Crew
from gpuckpt.image.damage import Damaged, refusal, stored_damage
from gpuckpt.image.distant import key_of
from gpuckpt.image.frames import table_size
from gpuckpt.image.landing import PART

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.image.landing import Landing, Piecewise
    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.origin import Source
    from gpuckpt.image.store import Image

_AT_ONCE: Final = 8
_TURN: Final = 0.2  # seconds; how soon a signal is heard


class Copier:
    """Sends files of `image` to `landing`.

    `on_bytes` is told of bytes as they arrive, from any thread; `check` is called in between, by
    who calls, and may raise.
    """

    def __init__(
        self,
        image: Image,
        landing: Landing,
        on_bytes: Callable[[int], None],
        check: Callable[[], None],
    ) -> None:
        """Send nothing yet."""
        self._image = image
        self._landing = landing
        self._on_bytes = on_bytes
        self._check = check
        self._failed: list[Exception] = []
        self._stopped = False
        self._lock = threading.Lock()
        self.sent = 0

    def missing(self) -> list[FileEntry]:
        """Return the files that have not arrived: of the right size, with the right frame table."""
        there = self._landing.names()
        found: list[FileEntry] = []
        lock = threading.Lock()

        def look(entry: FileEntry) -> None:
            try:
                if not self._has(entry, there):
                    with lock:
                        found.append(entry)
            except Exception as why:  # noqa: BLE001 - raised again below
                self._failed.append(why)

        crew = Crew("look", _AT_ONCE)
        for entry in self._image.manifest.files:
            crew.do(partial(look, entry))
        crew.dismiss(self._check)
        self._raise()
        return sorted(found, key=lambda one: -one.stored_size)

    def send(self, entries: Iterable[FileEntry]) -> None:
        """Send these files; what has arrived stays, also after a failure.

        Raises:
            ImageDamaged: a file of the image is missing, or has another size.
            StoreFailed, NotWritable, NoSpace: it cannot be read or written.
        """
        crew = Crew("copy", _AT_ONCE)
        try:
            try:
                for entry in entries:
                    self._turn()
                    if entry.stored_size > PART:
                        self._begin(entry, crew)
                    else:
                        crew.do(partial(self._guarded, partial(self._whole, entry)))
            except BaseException:
                self._stopped = True
                raise
            finally:  # a store that does not answer is not waited for when a signal has come
                crew.dismiss(self._heard)
            self._raise()
        except Damaged as why:
            raise refusal(self._image.path, [why.damage]) from why

    def _has(self, entry: FileEntry, there: dict[str, int]) -> bool:
        if there.get(key_of(entry)) != entry.stored_size:
            return False
        size = table_size(entry.frames, entry.table_version)
        data = self._landing.read(key_of(entry), entry.stored_size - size, size)
        return blake3(data).hexdigest() == entry.table_blake3

    def _whole(self, entry: FileEntry) -> None:
        """Send a small file in one go."""
        source = self._image.open_stored(entry)
        try:
            upload = self._landing.upload(key_of(entry), entry.stored_size)
            self._in_order(_Way(entry, source, upload, PART))
        finally:
            source.close()

    def _in_order(self, way: _Way) -> None:
        room = memoryview(bytearray(min(way.entry.stored_size, way.part) + 2 * BLOCK))
        for offset in way.offsets():
            self._piece(way, offset, room)
        way.upload.close()

    def _begin(self, entry: FileEntry, crew: Crew) -> None:
        """Send a large file: in pieces side by side, if it is taken so."""
        source = self._image.open_stored(entry)
        try:
            upload = self._landing.upload(key_of(entry), entry.stored_size)
        except BaseException:
            source.close()
            raise
        way = _Way(entry, source, upload, upload.part or PART)
        if not upload.part:
            crew.do(partial(self._guarded, partial(self._in_order, way), source.close))
            return
        left = [one for one in way.offsets() if one not in upload.there]
        self._on_bytes(entry.stored_size - sum(map(way.length, left)))
        self._in_pieces(way, left, Countdown(len(left) + 1, partial(self._end, way)), crew)

    def _in_pieces(self, way: _Way, offsets: list[int], done: Countdown, crew: Crew) -> None:
        buffers = Buffers(_AT_ONCE * (way.part + 2 * BLOCK))
        under_way: deque[threading.Event] = deque()
        left = len(offsets) + 1
        try:
            for offset in offsets:
                # in this order: what a file has before its last pieces has no holes
                while len(under_way) >= _AT_ONCE:
                    self._turn()
                    if under_way[0].wait(_TURN):
                        under_way.popleft()
                self._turn()
                arrived = threading.Event()
                under_way.append(arrived)
                left -= 1
                task = partial(self._buffered, way, offset, buffers)
                crew.do(partial(self._guarded, task, arrived.set, done))
        finally:
            for _ in range(left):
                done()

    def _buffered(self, way: _Way, offset: int, buffers: Buffers) -> None:
        buffer = buffers.take(way.part + 2 * BLOCK)
        try:
            self._piece(way, offset, buffer.view)
        finally:
            buffers.give(buffer)

    def _piece(self, way: _Way, offset: int, room: memoryview) -> None:
        size = way.length(offset)
        try:
            data = way.source.read(offset, size, room)
        except OSError as why:
            reason = f"it cannot be read ({why.strerror})"
            raise Damaged(stored_damage(way.entry, reason)) from why
        if len(data) != size:
            raise Damaged(stored_damage(way.entry, "it has become shorter"))
        way.upload.write(offset, data)
        with self._lock:
            self.sent += size
        self._on_bytes(size)

    def _end(self, way: _Way) -> None:
        """Have a file confirmed of which all pieces have arrived."""
        self._guarded(way.upload.close, way.source.close)

    def _guarded(self, task: Callable[[], None], *then: Callable[[], None]) -> None:
        """Do it unless something has failed already; `then` is done whatever happens."""
        try:
            if not (self._failed or self._stopped):
                task()
        except Exception as why:  # noqa: BLE001 - raised again by `send`
            self._failed.append(why)
        finally:
            for one in then:
                one()

    def _turn(self) -> None:
        self._heard()
        self._raise()

    def _heard(self) -> None:
        try:
            self._check()
        except BaseException:
            self._stopped = True
            raise

    def _raise(self) -> None:
        if self._failed:
            raise self._failed[0]


class _Way(NamedTuple):
    """One file on its way, in pieces of `part` bytes."""

    entry: FileEntry
    source: Source
    upload: Piecewise
    part: int

    def offsets(self) -> range:
        """Return where the pieces begin."""
        return range(0, self.entry.stored_size, self.part)

    def length(self, offset: int) -> int:
        """Return how long the piece there is."""
        return min(self.part, self.entry.stored_size - offset)
