"""Timers that have expired unread, and how they do so again."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from gpuckpt.tools.timers import expired, fire

LIBC = ctypes.CDLL(None)
NONBLOCK = 0o4000
ME = Path("/proc/self")


def timer(first: int, every: int) -> int:
    """Return a timer that runs out in so many nanoseconds, and again and again."""
    fd = int(LIBC.timerfd_create(1, NONBLOCK))
    LIBC.timerfd_settime(fd, 0, struct.pack("4q", 0, every, 0, first), None)
    return fd


def test_what_has_expired_and_does_again() -> None:
    once, often, never = timer(1, 0), timer(1, 10_000_000), timer(0, 0)
    try:
        for fd in (once, often):
            select.select([fd], [], [], 20)
        assert {once, often} <= set(expired(ME))
        assert never not in expired(ME)
        for fd in (once, often):
            # as CRIU leaves them: set, but not running
            every = 10_000_000 if fd == often else 0
            LIBC.timerfd_settime(fd, 0, struct.pack("4q", 0, every, 0, 0), None)
            assert fd not in expired(ME)
            fire(os.getpid(), fd)
            for _ in range(1 + (fd == often)):
                assert select.select([fd], [], [], 20)[0]
                os.read(fd, 8)
        with suppress(BlockingIOError):
            assert not os.read(once, 8)
    finally:
        for fd in (once, often, never):
            os.close(fd)


def test_what_is_no_timer() -> None:
    with Path(os.devnull).open() as file, pytest.raises(OSError, match="Invalid argument"):
        fire(os.getpid(), file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        fire(os.getpid(), 9999)
