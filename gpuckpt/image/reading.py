"""Reading single frames of a stored file, each proved before anyone sees its bytes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from gpuckpt.image.buffers import room_for
from gpuckpt.image.damage import Damage, Damaged, stored_damage
from gpuckpt.image.frames import Frame, FrameDamaged, check_stored, new_unpacker, prove_frame
from gpuckpt.image.memory import Scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zstandard

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.store import Image


class _Own(threading.local):
    """A decompressor works for one thread at a time, and so do buffers to work in."""

    def __init__(self) -> None:
        self.unpacker: zstandard.ZstdDecompressor = new_unpacker()
        self.stored = Scratch()
        self.raw = Scratch()


_own = _Own()


class Unpacked(NamedTuple):
    """A frame, proved: its raw bytes, in order, and how the time for it went by.

    `used`: they lie in the memory that was offered for them. `begun`, `read` and `ended` are
    readings of time.perf_counter.
    """

    pieces: Sequence[memoryview]
    used: bool
    begun: float
    read: float
    ended: float


class StoredFile:
    """One stored file, open; reading from several threads is fine."""

    def __init__(self, image: Image, entry: FileEntry) -> None:
        """Open it and read its table.

        Raises:
            Damaged: it is missing, has another size, or its table is not the one written.
            ImageUntrusted: others could have written it.
        """
        self.entry = entry
        self._source = image.open_stored(entry)
        try:
            self.table = image.table(entry, self._source)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; nobody may read from it any more."""
        self._source.close()

    def stored(self, frame: Frame, room: memoryview) -> memoryview:
        """Read the stored bytes of a frame into `room`, and return where they are.

        They are fewer if the file has become shorter. `room` has as many bytes as `room_for` says.

        Raises:
            Damaged: they cannot be read.
            StoreFailed: the store did not give them.
        """
        try:
            return self._source.read(frame.offset, frame.stored, room)
        except OSError as why:
            raise self.damaged(frame, f"it cannot be read ({why.strerror})") from why

    def unpack(self, frame: Frame, room: memoryview) -> Unpacked:
        """Return the bytes of a frame, proved to be those that were packed; most lie in `room`.

        `room` has as many bytes as `room_for` says.

        Raises:
            Damaged: they are not.
        """
        begun = time.perf_counter()
        as_it_is = frame.stored >= frame.raw
        stored = self.stored(frame, room if as_it_is else _own.stored.view(room_for(frame.raw)))
        read = time.perf_counter()
        pieces = self.prove(frame, stored, None if as_it_is else room)
        if as_it_is and pieces[0].obj is not room.obj:  # it was compressed after all
            room[: frame.raw] = b"".join(pieces)
            pieces = (room[: frame.raw],)
        return Unpacked(pieces, pieces[0].obj is room.obj, begun, read, time.perf_counter())

    def prove(
        self, frame: Frame, stored: memoryview, room: memoryview | None = None
    ) -> Sequence[memoryview]:
        """Return the raw bytes of a frame: where they lie in `stored`, or unpacked into `room`.

        Without `room` into memory of this thread, to be looked at before it does the next one.

        Raises:
            Damaged: they are not those that were packed.
        """
        try:
            if room is None:
                room = _own.raw.view(frame.raw)
            return prove_frame(_own.unpacker, frame, stored, room)
        except FrameDamaged as why:
            raise self.damaged(frame, str(why)) from why

    def raw(self, frame: Frame) -> bytes:
        """Return the bytes of a frame, proved to be those that were packed.

        Raises:
            Damaged: they are not.
        """
        return b"".join(
            self.prove(frame, self.stored(frame, _own.stored.view(room_for(frame.raw))))
        )

    def check_stored(self, frame: Frame, stored: bytes | memoryview) -> None:
        """Look whether a frame has just the stored bytes it was written with.

        Raises:
            Damaged: it has not.
        """
        try:
            check_stored(frame, stored)
        except FrameDamaged as why:
            raise self.damaged(frame, str(why)) from why

    def damaged(self, frame: Frame, reason: str) -> Damaged:
        """Return the error for one frame."""
        whole = stored_damage(self.entry, reason)
        return Damaged(Damage(whole.file, reason, frame.number, frame.offset))
