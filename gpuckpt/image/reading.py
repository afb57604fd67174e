"""Reading single frames of a stored file, each proved before anyone sees its bytes."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gpuckpt.image.damage import Damage, Damaged
from gpuckpt.image.frames import Frame, FrameDamaged, decode_frame, new_unpacker
from gpuckpt.image.store import read_at, stored_damage

if TYPE_CHECKING:
    import zstandard

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.store import Image


class _Own(threading.local):
    """A decompressor works for one thread at a time, so each has its own."""

    def __init__(self) -> None:
        self.unpacker: zstandard.ZstdDecompressor = new_unpacker()


_own = _Own()


class StoredFile:
    """One stored file, open; reading from several threads is fine."""

    def __init__(self, image: Image, entry: FileEntry) -> None:
        """Open it and read its table.

        Raises:
            Damaged: it is missing, has another size, or its table is not the one written.
            ImageUntrusted: others could have written it.
        """
        self.entry = entry
        self._fd = image.open_stored(entry)
        try:
            self.table = image.table(entry, self._fd)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def stored(self, frame: Frame) -> bytes:
        """Return the stored bytes of a frame, fewer if the file has become shorter.

        Raises:
            Damaged: they cannot be read.
        """
        try:
            return read_at(self._fd, frame.stored, frame.offset)
        except OSError as why:
            raise self.damaged(frame, f"it cannot be read ({why.strerror})") from why

    def raw(self, frame: Frame, stored: bytes | None = None) -> bytes:
        """Return the bytes of a frame, proved to be those that were packed.

        Raises:
            Damaged: they are not.
        """
        try:
            return decode_frame(
                _own.unpacker, frame, self.stored(frame) if stored is None else stored
            )
        except FrameDamaged as why:
            raise self.damaged(frame, str(why)) from why

    def damaged(self, frame: Frame, reason: str) -> Damaged:
        """Return the error for one frame."""
        whole = stored_damage(self.entry, reason)
        return Damaged(Damage(whole.file, reason, frame.number, frame.offset))
