"""Where the bytes of one stored file go, in order, hashed on their way to the disk.

Big files bypass the page cache (O_DIRECT): the image is synced before the job may go on, so
the bytes have to reach the disk anyway, and a host that just took in the memory of its GPUs
has no room for a second copy of them. Where that is not supported, or a file is small, they
go through the cache and the kernel is told to begin writing at once.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.image import disk
from gpuckpt.image.crew import Scratch
from gpuckpt.image.frames import FRAME_SIZE, largest_stored

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
        self.size = 0
        self._fd = fd
        self._hash = blake3()
        self._direct = direct and self._set_direct(on=True)
        self._carry = b""

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write `parts`, at most one frame, after what is there."""
        size = sum(map(len, parts))
        if self._direct:
            self._append_direct(parts)
        else:
            self._append_cached(parts, size)
        self.size += size

    def end(self) -> str:
        """Write what is left, begin to sync it, and return the BLAKE3 of the whole file."""
        if self._direct:
            self._set_direct(on=False)
            os.pwrite(self._fd, self._carry, self.size - len(self._carry))
            self._carry = b""
        disk.start_writeback(self._fd)
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Return once every byte is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _append_cached(self, parts: Sequence[bytes | memoryview], size: int) -> None:
        for part in parts:
            self._hash.update(part)
            disk.write_all(self._fd, part)
        if size >= _WORTH_IT:
            disk.start_writeback(self._fd, self.size, size)

    def _append_direct(self, parts: Sequence[bytes | memoryview]) -> None:
        view = _scratch.view(_BOUNCE)
        start = self.size - len(self._carry)
        end = len(self._carry)
        view[:end] = self._carry
        for part in parts:
            self._hash.update(part)
            view[end : end + len(part)] = part
            end += len(part)
        whole = end & -_BLOCK
        written = 0
        while written < whole:
            written += os.pwrite(self._fd, view[written:whole], start + written)
        self._carry = bytes(view[whole:end])

    def _set_direct(self, *, on: bool) -> bool:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(
                self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
            )
        except OSError:
            return False
        return on
