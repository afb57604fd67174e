"""Timers behind descriptors that have expired, which nobody has read yet.

CRIU 4.2.1 saves that a timerfd has expired and loses it at the restore: it sets the timer after
the count, and a timer that is set anew has not expired. One that repeats has no time left either,
so that it stands still for ever, and whatever loop waits for it.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.borrowed import copied
from gpuckpt.tools.descriptors import fdinfo, targets

if TYPE_CHECKING:
    from pathlib import Path

_TIMER: Final = "anon_inode:[timerfd]"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PAIR: Final = re.compile(r"\((\d+), (\d+)\)")


def expired(process: Path | str) -> tuple[int, ...]:
    """Return the descriptors of timers that have expired and were not read since.

    Raises:
        PermissionError: this process may not look.
    """
    timers = (fd for fd, target in targets(process) if target == _TIMER)
    return tuple(fd for fd in timers if dict(fdinfo(process, fd)).get("ticks", "0") != "0")


def fire(pid: int, fd: int) -> None:
    """Let a timer of a process expire at once; one that repeats goes on from there.

    Raises:
        OSError: it cannot be reached, or is no timer.
    """
    with copied(pid, fd) as timer:
        interval = _PAIR.fullmatch(dict(fdinfo("/proc/self", timer)).get("it_interval", ""))
        again = (int(interval[1]), int(interval[2])) if interval else (0, 0)
        if _LIBC.timerfd_settime(timer, 0, struct.pack("4q", *again, 0, 1), None) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
