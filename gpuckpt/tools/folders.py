"""Folders that are made anew for a job: those its sockets and its files in memory lie in."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import deque
from contextlib import suppress
from typing import Final

_TOP: Final = re.compile(r"/proc/\d+/root(?=/)")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_LINKS: Final = 40  # as the kernel has it


def make(path: str, mode: int, uid: int, gid: int) -> tuple[int, int]:
    """Make one folder and return its device and inode.

    No link is followed on the way: in /tmp anybody may have put one there. Only the kernel's own
    to what a process sees (/proc/PID/root) is, at the beginning.

    Raises:
        OSError: something has its name, or the one above it is missing or a link.
    """
    above, _, name = path.rstrip("/").rpartition("/")
    try:
        place = opened(above, links=False)
        try:
            os.mkdir(name, 0o700, dir_fd=place)
            return _given(name, place, mode, uid, gid)
        finally:
            os.close(place)
    except OSError as why:
        raise OSError(why.errno, why.strerror, path) from why


def opened(path: str, *, links: bool = True) -> int:
    """Open a folder; with `links`, those of root and our own that are on the way are followed.

    Those of others are not: where a restore writes, root's rights would be theirs.

    Raises:
        OSError: it is not there, or a link is on the way that is not followed.
    """
    top = _TOP.match(path)
    parts = deque(path[top.end() if top else 0 :].split("/"))
    place, followed = _start(path), 0
    try:
        while parts:
            if (part := parts.popleft()) in {"", "."}:
                continue
            try:
                inner = os.open(part, _FOLDER, dir_fd=place)
            except OSError as why:
                followed += 1
                target = _trusted(part, place) if links and followed <= _MOST_LINKS else ""
                if why.errno not in {errno.ELOOP, errno.ENOTDIR} or not target:
                    raise
                parts.extendleft(reversed(target.split("/")))
                inner = _start(path) if target.startswith("/") else os.dup(place)
            os.close(place)
            place = inner
    except OSError as why:
        os.close(place)
        raise OSError(why.errno, why.strerror, path) from why
    return place


def _start(path: str) -> int:
    top = _TOP.match(path)
    return os.open(top[0] if top else "/", _FOLDER & ~os.O_NOFOLLOW)


def _trusted(name: str, place: int) -> str:
    """Return where a link leads, "" if it is none, or of somebody else."""
    with suppress(OSError):
        seen = os.stat(name, dir_fd=place, follow_symlinks=False)
        if stat.S_ISLNK(seen.st_mode) and seen.st_uid in {0, os.geteuid()}:
            return os.readlink(name, dir_fd=place)
    return ""


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
