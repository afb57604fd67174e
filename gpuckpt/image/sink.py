"""Where the bytes of one stored file go, in order.

Big files bypass the page cache (O_DIRECT): the image is synced before the job may go on, so
the bytes have to reach the disk anyway, and a host that just took in the memory of its GPUs
has no room for a second copy of them. Where that is not supported, or a file is small, they
go through the cache and the kernel is told to begin writing at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from gpuckpt.image import disk
from gpuckpt.image.frames import FRAME_SIZE, largest_stored
from gpuckpt.image.memory import Scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK = 4096
_BOUNCE = -(-(largest_stored(FRAME_SIZE) + _BLOCK) // _BLOCK) * _BLOCK
_WORTH_IT = 256 << 10

_scratch = Scratch()


class Sink:
    """One stored file being written. Only one thread at a time may use it."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        """Take over the new, empty file `fd`; `direct` asks to bypass the page cache."""
        self._fd = fd
        self._end = 0
        self._carry = b""  # what does not fill a block yet; it is before _end
        self._direct = direct and self._set_direct(on=True)

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write `parts`, at most one frame, after what is there."""
        if self._direct:
            self._append_direct(parts)
            return
        start = self._end
        for part in parts:
            disk.write_all(self._fd, part, self._end)
            self._end += len(part)
        if self._end - start >= _WORTH_IT:
            disk.start_writeback(self._fd, start, self._end - start)

    def end(self) -> None:
        """Write what is left, and begin to sync it."""
        if self._direct:
            self._leave_direct()
        disk.start_writeback(self._fd)

    def sync(self) -> None:
        """Return once every byte is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _append_direct(self, parts: Sequence[bytes | memoryview]) -> None:
        """Copy the parts to where they are aligned, and write all blocks they fill."""
        view = _scratch.view(_BOUNCE)
        start = self._end - len(self._carry)
        filled = len(self._carry)
        view[:filled] = self._carry
        for part in parts:
            view[filled : filled + len(part)] = part
            filled += len(part)
        whole = filled & -_BLOCK
        self._end = start + filled
        self._carry = bytes(view[whole:filled])
        try:
            disk.write_all(self._fd, view[:whole], start)
        except OSError as why:
            if why.errno != errno.EINVAL:
                raise
            # Some filesystems take the flag and refuse the write.
            self._leave_direct()
            disk.write_all(self._fd, view[:whole], start)

    def _leave_direct(self) -> None:
        self._direct = self._set_direct(on=False)
        disk.write_all(self._fd, self._carry, self._end - len(self._carry))
        self._carry = b""

    def _set_direct(self, *, on: bool) -> bool:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)
        except OSError:
            return False
        return on
