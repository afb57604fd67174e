"""Reading single frames of a stored file, each proved before anyone sees its bytes."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from gpuckpt.image.damage import Damage, Damaged
from gpuckpt.image.frames import Frame, FrameDamaged, check_stored, decode_frame, new_unpacker
from gpuckpt.image.memory import Scratch
from gpuckpt.image.store import read_at, stored_damage

if TYPE_CHECKING:
    import zstandard

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.store import Image

_BLOCK = 4096
# not cached; or the filesystem knows no such flag, or takes O_DIRECT and refuses the read
_NOT_SO = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL})
_BIG = 1 << 20


class _Own(threading.local):
    """A decompressor works for one thread at a time, and so does a buffer to read into."""

    def __init__(self) -> None:
        self.unpacker: zstandard.ZstdDecompressor = new_unpacker()
        self.scratch = Scratch()


_own = _Own()


class StoredFile:
    """One stored file, open; reading from several threads is fine.

    What of a big file is not in the page cache is read past it: a restore needs the host's
    memory for the job, and filling the cache costs more than the reading.
    """

    def __init__(self, image: Image, entry: FileEntry) -> None:
        """Open it and read its table.

        Raises:
            Damaged: it is missing, has another size, or its table is not the one written.
            ImageUntrusted: others could have written it.
        """
        self.entry = entry
        self._direct: int | None = None
        self._fd = image.open_stored(entry)
        try:
            self.table = image.table(entry, self._fd)
            if entry.stored_size >= _BIG:
                self._direct = image.open_direct(entry, self._fd)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; nobody may read from it any more."""
        os.close(self._fd)
        if self._direct is not None:
            os.close(self._direct)

    def stored(self, frame: Frame) -> bytes | memoryview:
        """Return the stored bytes of a frame, fewer if the file has become shorter.

        They are this thread's, and stay as they are until it asks again.

        Raises:
            Damaged: they cannot be read.
        """
        try:
            if self._direct is None:
                return read_at(self._fd, frame.stored, frame.offset)
            return self._cached(frame) or self._past_cache(frame, self._direct)
        except OSError as why:
            raise self.damaged(frame, f"it cannot be read ({why.strerror})") from why

    def _cached(self, frame: Frame) -> memoryview | None:
        view = _own.scratch.view(frame.stored)
        try:
            count = os.preadv(self._fd, [view], frame.offset, os.RWF_NOWAIT)
        except OSError as why:
            if why.errno in _NOT_SO:
                return None
            raise
        return view if count == frame.stored else None

    def _past_cache(self, frame: Frame, direct: int) -> bytes | memoryview:
        start = frame.offset & -_BLOCK
        skip = frame.offset - start
        size = (skip + frame.stored + _BLOCK - 1) & -_BLOCK
        view = _own.scratch.view(size)
        try:
            got = os.preadv(direct, [view], start)
        except OSError as why:
            if why.errno not in _NOT_SO:
                raise
            got = 0
        if got >= skip + frame.stored:
            return view[skip : skip + frame.stored]
        return read_at(self._fd, frame.stored, frame.offset)

    def raw(self, frame: Frame, stored: bytes | memoryview | None = None) -> bytes:
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
