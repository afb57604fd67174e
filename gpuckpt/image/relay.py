"""Pipes of our own between a foreign pipe and our memory.

Whoever copies into a pipe or out of it keeps the other end away meanwhile, and who waits for
that spins. Moving whole pages from one pipe to another is quick. So bytes are copied into or out
of a pipe of our own while the foreign process works on what it has: on two cores a tenth
faster when packing and a quarter when unpacking, and CRIU is never held up by our copying.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

_PIPE_SIZE = 1 << 20  # what an unprivileged user may ask for
_NO_RELAY = frozenset({errno.EINVAL, errno.EMFILE, errno.ENFILE})


class Relay:
    """One such pipe; `held` bytes are in it. Used for reading or for writing, never for both."""

    def __init__(self) -> None:
        """Make the pipe."""
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        widen(self._in)
        self.held = 0

    def read(self, fd: int, view: memoryview) -> int:
        """Read what is there from `fd` into `view`, like os.readv; 0 at its end.

        Raises:
            OSError: one that `no_relay` knows, if nothing can be moved out of `fd`.
        """
        moved = os.splice(fd, self._in, len(view))
        copied = 0
        while copied < moved:
            copied += os.readv(self._out, [view[copied:moved]])
        return moved

    def put(self, view: memoryview) -> int:
        """Take as many bytes as there is room for, and return how many."""
        try:
            count = os.write(self._in, view[: _PIPE_SIZE - self.held])
        except BlockingIOError:
            return 0
        self.held += count
        return count

    def push(self, fd: int) -> None:
        """Move what is held on to `fd`, or as much of it as goes at once.

        Raises:
            BlockingIOError: nothing goes.
            OSError: one that `no_relay` knows, if nothing can ever be moved into `fd`.
        """
        if self.held:
            self.held -= os.splice(self._out, fd, self.held, flags=os.SPLICE_F_NONBLOCK)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._out)
        os.close(self._in)


def no_relay(why: OSError) -> bool:
    """Whether an error of a relay means that bytes have to go without one."""
    return why.errno in _NO_RELAY


def widen(fd: int) -> None:
    """Give a pipe room for a MiB, if it has less and may have more."""
    with suppress(OSError):  # no pipe, or the user's pipes are at their limit
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _PIPE_SIZE:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
