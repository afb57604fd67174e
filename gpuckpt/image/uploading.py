"""A store elsewhere as a place for stored files: objects that are sent while the dump goes on.

What comes is gathered into parts, which are sent side by side where the store takes them so. An
object counts when the store has confirmed it, and the image when manifest.json follows last: see
gpuckpt.image.remotestage.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from gpuckpt.errors import GpuckptError, WriteFailed
from gpuckpt.image import names
from gpuckpt.image.asking import PATIENCE, Asking
from gpuckpt.image.buffers import Buffer, copy
from gpuckpt.image.memory import Stopped
from gpuckpt.image.shelf import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

# what is handed at once to a store that takes no parts, and the least that a part of others has
_CHUNK: Final = 16 << 20
# S3 takes no more parts of an object; so they are larger where much is expected
_PARTS: Final = 10_000
_WRITERS: Final = 8
# bytes a second that all senders together must bring through
_SLOWEST: Final = 4 << 20


class Upload(Protocol):
    """One object on its way; see gpuckpt.tools.remote."""

    @property
    def part(self) -> int:
        """The size of all parts but the last; 0: whatever comes, one after the other."""

    @property
    def there(self) -> frozenset[int]:
        """Where the parts begin that an earlier try has left there."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Send a part, from any thread; when it returns the store has it."""

    def close(self) -> None:
        """Have the store confirm the object."""

    def abort(self) -> None:
        """Take back what was sent; never raises."""


class Store(Protocol):
    """The folder of a store, for who puts an image there; all may raise what is in words."""

    def names(self) -> dict[str, int]:
        """Return the size of every object, by its name."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small object."""

    def upload(self, name: str, size: int, most: int = ...) -> Upload:
        """Begin an object whose size is not known (0), but that it is hardly more than `most`."""

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""

    def remove_all(self) -> None:
        """Remove all objects, and what was sent of others."""


class Uploads:
    """The stored files of an image that goes to a store; see Shelf."""

    aside = True

    def __init__(self, store: Store, where: str, most: int, memory: int) -> None:
        """Send nothing yet; `where` is what people call the place.

        No object is to have more than `most` bytes; parts that wait to be sent take up to half of
        `memory`, or of one sender what they take.
        """
        self.store = store
        self.most = max(1, most)
        self._free: list[Buffer] = []
        part = max(_CHUNK, most // _PARTS)
        self.writers = max(1, min(_WRITERS, memory // 2 // part - 2))
        self.memory = (self.writers + 2) * part
        self.objects = self.bytes = 0
        self.asked = Asking(where, PATIENCE + self.memory / _SLOWEST)
        self._where = where
        self._changed = threading.Condition()
        self._busy = 0
        self._stopped = False

    def create(self, name: str, *, big: bool) -> UploadSink:
        """Return a file that is begun there when its first byte is sent."""
        del big
        return UploadSink(self, f"{names.CRIU_DIR}/{names.stored_name(name)}")

    def sync(self) -> None:
        """Do nothing: every object was confirmed for itself."""

    def stop(self) -> None:
        """Begin nothing any more; what is under way comes to its end, or to its time limit."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def count(self, objects: int, size: int) -> None:
        """Know that the store has so much more."""
        with self._changed:
            self.objects += objects
            self.bytes += size

    @property
    def told(self) -> str:
        """Say how much was sent."""
        return f"{self.objects} objects, {self.bytes / (1 << 20):.1f} MiB"

    def begin(self, name: str) -> Upload:
        """Begin an object."""
        return self.asked(lambda: self.store.upload(name, 0, self.most))

    def lend(self, size: int) -> Buffer:
        """Return memory for a part, of which nothing is touched before it is used."""
        with self._changed:
            if self._free and self._free[-1].size >= size:
                return self._free.pop()
        return Buffer(size)

    def give(self, buffer: Buffer) -> None:
        """Take memory back."""
        with self._changed:
            self._free.append(buffer)

    def idle(self, seconds: float) -> bool:
        """Wait until nothing is under way; say whether that is so."""
        with self._changed:
            still = self._changed.wait_for(lambda: not self._busy, seconds)
        return still and self.asked.quiet()

    def error(self, why: Exception) -> GpuckptError:
        """Return what the store has said."""
        known = why if isinstance(why, GpuckptError) else None
        told = known.message if known else f"{self._where}: {why!r}"
        return WriteFailed(f"the image could not be sent: {told}", hint=known.hint if known else "")

    def close(self) -> None:
        """Let go of nothing: the stage has the store."""

    def __enter__(self) -> None:
        """Say that something is under way; Stopped if nothing may be begun."""
        with self._changed:
            if self._stopped:
                raise Stopped
            self._busy += 1

    def __exit__(self, *_: object) -> None:
        """Say that it is over."""
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()


class UploadSink:
    """One object on its way; see Sink."""

    def __init__(self, shelf: Uploads, name: str) -> None:
        """Begin nothing yet."""
        self._shelf = shelf
        self._name = name
        self._upload: Upload | None = None
        self._part = _CHUNK
        self._gathered: Buffer | None = None
        self._sending: dict[int, Buffer] = {}
        self._filled = 0
        self._offset = 0  # of what is gathered
        self._turn = threading.Condition()
        self._sent = 0  # by a store that takes no parts
        self._failed = False
        self._complete = False

    def append(self, parts: Sequence[bytes | memoryview]) -> Piece | None:
        """Gather `parts`; what is to be sent now is a full part, if they fill one."""
        self._begin()
        piece = None
        for part in parts:
            view = memoryview(part)
            while view:
                taken = min(len(view), self._part - self._filled)
                copy(self._place().view[self._filled :], view[:taken])
                self._filled += taken
                view = view[taken:]
                if self._filled == self._part:
                    piece = self._full()
        return piece

    def write(self, piece: Piece) -> None:
        """Send a part."""
        upload = self._begin()
        (data,) = piece.parts
        try:
            with self._shelf:
                if upload.part:
                    self._shelf.asked(lambda: upload.write(piece.offset, data))
                else:
                    self._in_turn(upload, piece.offset, data)
        except BaseException:
            with self._turn:  # nobody waits for this piece any more
                self._failed = True
                self._turn.notify_all()
            raise
        self._shelf.count(0, piece.size)
        self._shelf.give(self._sending.pop(piece.offset))

    def end(self) -> None:
        """Send the rest, and wait until the store has confirmed the whole object."""
        upload = self._begin()
        if self._filled:
            self.write(self._full())
        with self._shelf:
            self._shelf.asked(upload.close)
        self._complete = True
        self._shelf.count(1, 0)

    def sync(self) -> None:
        """Do nothing: what the store has confirmed is safe."""

    def close(self) -> None:
        """Take back what was sent of an object that was never complete."""
        upload, self._upload = self._upload, None
        if upload is not None and not self._complete:
            upload.abort()

    def _begin(self) -> Upload:
        if self._upload is None:
            with self._shelf:
                self._upload = self._shelf.begin(self._name)
            self._part = self._upload.part or _CHUNK
        return self._upload

    def _place(self) -> Buffer:
        if self._gathered is None:
            self._gathered = self._shelf.lend(self._part)
        return self._gathered

    def _full(self) -> Piece:
        """Return what is gathered, and gather anew behind it."""
        buffer = self._sending[self._offset] = self._place()
        piece = Piece((buffer.view[: self._filled],), self._offset, self._filled)
        self._offset += self._filled
        self._gathered, self._filled = None, 0
        return piece

    def _in_turn(self, upload: Upload, offset: int, data: bytes | memoryview) -> None:
        """Send a piece when all before it are sent, or fail as they did."""
        with self._turn:
            self._turn.wait_for(lambda: self._failed or self._sent == offset)
            if self._failed:
                raise Stopped
        self._shelf.asked(lambda: upload.write(offset, data))
        with self._turn:
            self._sent += len(data)
            self._turn.notify_all()
