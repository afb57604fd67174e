"""The disk as a place for stored files.

Big files bypass the page cache (O_DIRECT): the image is synced before the job may go on, so
the bytes have to reach the disk anyway, and a host that just took in the memory of its GPUs
has no room for a second copy of them. (A virtual machine wrote 0.6 GB/s into fresh page cache
and 1.3 GB/s past it.) Where that is not supported, or a file is small, they go through the
cache and the kernel is told to begin writing at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from gpuckpt.errors import WriteFailed
from gpuckpt.image import disk, names
from gpuckpt.image.buffers import copy
from gpuckpt.image.frames import FRAME_SIZE, largest_stored
from gpuckpt.image.memory import Scratch
from gpuckpt.image.shelf import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuckpt.errors import GpuckptError

_BLOCK = 4096
_WORTH_IT = 256 << 10
# what a writer needs for itself: a frame, and before it what did not fill a block or was too small
SCRATCH = -(-(largest_stored(FRAME_SIZE) + _WORTH_IT + _BLOCK) // _BLOCK) * _BLOCK

_scratch = Scratch()


class Folder:
    """An open folder; see Shelf. Its files are synced side by side at the end, and it last."""

    # One copies to where it is aligned while another writes: 1.0 s for 1 GiB instead of 1.3 with
    # one, and no more than that with four on one disk.
    writers = 4
    memory = 4 * SCRATCH
    aside = False

    def __init__(self, path: Path) -> None:
        """Open the folder.

        Raises:
            WriteFailed: it is not there.
        """
        self._path = path
        try:
            self._fd = os.open(path, disk.FOLDER_FLAGS)
        except OSError as why:
            raise disk.writing_error(why, path, None) from why

    def create(self, name: str, *, big: bool) -> FileSink:
        """Make a stored file; a big one is written past the page cache."""
        return FileSink(disk.new_file(self._fd, names.stored_name(name)), direct=big)

    def sync(self) -> None:
        """Bring the folder to the disk."""
        os.fsync(self._fd)

    def error(self, why: Exception) -> GpuckptError:
        """Say what is wrong with the disk."""
        if isinstance(why, OSError):
            return disk.writing_error(why, self._path, self._fd)
        return WriteFailed(f"the image could not be written: {why!r}")

    def stop(self) -> None:
        """Do nothing: what is under way is soon over."""

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._fd)


class FileSink:
    """One stored file being written; see Sink."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        """Take over the new, empty file `fd`; `direct` asks to bypass the page cache."""
        self._fd = fd
        self._end = 0
        self._carry = b""  # what is not worth a write yet; it is before _end
        self._aligned = self._direct = direct and self._set_direct(on=True)

    def append(self, parts: Sequence[bytes | memoryview]) -> Piece | None:
        """Put `parts`, at most one frame, after what is there; what is to be written now.

        One thread at a time, and it must write that piece before it appends another.
        """
        if self._aligned:
            return self._append_aligned(parts)
        piece = Piece(parts, self._end, sum(map(len, parts)))
        self._end += piece.size
        return piece

    def write(self, piece: Piece) -> None:
        """Write a piece. Any thread, at any time before `end`."""
        try:
            disk.write_parts(self._fd, piece.parts, piece.offset)
        except OSError as why:
            if why.errno != errno.EINVAL or not self._aligned:
                raise
            # Some filesystems take the flag and refuse the write.
            self._leave_direct()
            disk.write_parts(self._fd, piece.parts, piece.offset)
        if not self._direct and piece.size >= _WORTH_IT:
            disk.start_writeback(self._fd, piece.offset, piece.size)

    def end(self) -> None:
        """Write what is left, and begin to sync it."""
        if self._aligned:
            self._leave_direct()
            disk.write_all(self._fd, self._carry, self._end - len(self._carry))
        disk.start_writeback(self._fd)

    def sync(self) -> None:
        """Return once every byte is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _append_aligned(self, parts: Sequence[bytes | memoryview]) -> Piece | None:
        """Copy the parts to where they are aligned, and give out all blocks they fill."""
        view = _scratch.view(SCRATCH)
        start = self._end - len(self._carry)
        filled = 0
        for part in (self._carry, *parts):
            copy(view[filled:], part)
            filled += len(part)
        self._end = start + filled
        whole = filled & -_BLOCK if filled >= _WORTH_IT else 0
        self._carry = bytes(view[whole:filled])
        return Piece((view[:whole],), start, whole) if whole else None

    def _leave_direct(self) -> None:
        self._direct = self._set_direct(on=False)

    def _set_direct(self, *, on: bool) -> bool:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)
        except OSError:
            return False
        return on
