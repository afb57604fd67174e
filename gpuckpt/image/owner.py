"""Who is writing a stage: a small file that says so, locked for as long as they live.

The kernel drops the lock when the process ends, however it ends, so a free lock on this host
means that nobody writes any more. What the file says is for stages on shared storage, where
a lock of another host may not be seen.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuckpt.image import disk, names

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_OWNER = 4096
# A stage without an owner file is one that is being made right now, or died that very moment.
_YOUNG = 60.0


def claim(stage: int, text: str) -> int:
    """Write the owner file of the open stage and return it open and locked."""
    fd = disk.new_file(stage, names.OWNER)
    try:
        with suppress(OSError):  # a filesystem without locks: the text has to do
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        disk.write_all(fd, text.encode("utf-8", "surrogateescape")[:_LARGEST_OWNER])
    except OSError:
        os.close(fd)
        raise
    return fd


def abandoned(stage: int, alive: Callable[[str], bool]) -> bool:
    """Whether nobody writes the open stage: its lock is free and `alive` denies its owner."""
    try:
        fd = os.open(names.OWNER, os.O_RDWR | os.O_NONBLOCK | disk.INSIDE, dir_fd=stage)
    except FileNotFoundError:
        return time.time() - os.fstat(stage).st_mtime > _YOUNG
    try:
        with suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return not alive(os.read(fd, _LARGEST_OWNER).decode("utf-8", "surrogateescape"))
    finally:
        os.close(fd)
