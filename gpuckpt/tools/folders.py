"""Folders that are made anew for a job: those its sockets and its files in memory lie in."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

_TOP: Final = re.compile(r"/proc/\d+/root(?=/)")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def make(path: str, mode: int, uid: int, gid: int) -> tuple[int, int]:
    """Make one folder and return its device and inode.

    No link is followed on the way: in /tmp anybody may have put one there. Only the kernel's own
    to what a process sees (/proc/PID/root) is, at the beginning.

    Raises:
        OSError: something has its name, or the one above it is missing or a link.
    """
    top = _TOP.match(path)
    *above, name = path[top.end() if top else 0 :].strip("/").split("/")
    place = os.open(top[0] if top else "/", _FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in above:
            inner = os.open(part, _FOLDER, dir_fd=place)
            os.close(place)
            place = inner
        os.mkdir(name, 0o700, dir_fd=place)
        return _given(name, place, mode, uid, gid)
    except OSError as why:
        raise OSError(why.errno, why.strerror, path) from why
    finally:
        os.close(place)


def _given(name: str, place: int, mode: int, uid: int, gid: int) -> tuple[int, int]:
    """Give a new folder to its owner; one that cannot be given goes again."""
    try:
        made = os.open(name, _FOLDER, dir_fd=place)
        try:
            os.fchown(made, uid, gid)
            os.fchmod(made, mode)
            seen = os.fstat(made)
        finally:
            os.close(made)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=place)
        raise
    return seen.st_dev, seen.st_ino


def remove(path: str) -> None:
    """Remove a folder unless something lies in it; nothing if it is gone.

    Raises:
        OSError: it may not be removed.
    """
    with suppress(FileNotFoundError):
        try:
            os.rmdir(path)  # noqa: PTH106 - paths may hold any bytes
        except OSError:
            if not os.listdir(path):  # noqa: PTH208
                raise
