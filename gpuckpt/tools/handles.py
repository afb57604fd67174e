"""What descriptors without a name refer to: processes behind pidfds, places being watched."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.descriptors import Descriptor, fdinfo
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gpuckpt.tools.places import Mount

_PIDFD: Final = "anon_inode:[pidfd]"
_WATCHERS: Final = {"anon_inode:inotify": "inotify", "anon_inode:[fanotify]": "fanotify"}
_THREAD: Final = 0o200  # PIDFD_THREAD, which is O_EXCL
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CANNOT: Final = frozenset({1, 13})  # EPERM, EACCES: this process may not ask at all


class Pidfd(Value, frozen=True):
    """A pidfd and the process it means, -1 if that has ended; `thread`: it means one thread."""

    pid: int
    fd: int
    means: int
    comm: str
    thread: bool


class LostWatch(Value, frozen=True):
    """A watch of inotify or fanotify on something that cannot be found again by its handle.

    `place` is where that is, as far as it is known, `filesystem` what kind of place.
    """

    pid: int
    fd: int
    kind: str
    place: str
    filesystem: str


def pidfds(
    root: Path, tree: Sequence[tuple[int, Sequence[Descriptor]]], names: Mapping[int, str]
) -> tuple[Pidfd, ...]:
    """Return every pidfd of the tree."""
    found: list[Pidfd] = []
    for pid, opened in tree:
        for fd in opened:
            if fd.target == _PIDFD:
                told = dict(fdinfo(f"{root}/{pid}", fd.fd))
                means = int(told.get("Pid", "-1"))
                thread = bool(int(told.get("flags", "0"), 8) & _THREAD)
                found.append(Pidfd(pid, fd.fd, means, names.get(means, "?"), thread))
    return tuple(found)


def lost_watches(
    root: Path, tree: Sequence[tuple[int, Sequence[Descriptor]]], known: Mapping[int, Mount]
) -> tuple[LostWatch, ...]:
    """Return the watches whose place the kernel does not find by the handle that fdinfo gives.

    CRIU does the same at a dump, and has no other way.
    """
    by_device: dict[int, list[Mount]] = {}
    for mount in known.values():
        by_device.setdefault(mount.device, []).append(mount)
    return tuple(
        LostWatch(pid, fd.fd, kind, *place)
        for pid, opened in tree
        for fd in opened
        if (kind := _WATCHERS.get(fd.target))
        for place in _lost(root, pid, fd.fd, by_device)
    )


def _lost(
    root: Path, pid: int, fd: int, by_device: Mapping[int, Sequence[Mount]]
) -> Iterator[tuple[str, str]]:
    for name, value in fdinfo(f"{root}/{pid}", fd):
        told = dict(part.split(":", 1) for part in f"{name}:{value}".split() if ":" in part)
        if "f_handle" not in told or "sdev" not in told:
            continue
        here = by_device.get(_device(int(told["sdev"], 16)), [])
        if not any(_found(root, pid, mount, told) for mount in here):
            yield (here[0].point, here[0].filesystem) if here else ("", "")


def _device(kernel: int) -> int:
    """Turn the kernel's own number of a device (20 bits of minor) into the one of stat."""
    return os.makedev(kernel >> 20, kernel & 0xFFFFF)


def _found(root: Path, pid: int, mount: Mount, told: Mapping[str, str]) -> bool:
    """Whether the handle leads to a file on this mount; also if nobody here may ask that."""
    handle = bytes.fromhex(told["f_handle"])
    raw = struct.pack("=Ii", len(handle), int(told["fhandle-type"], 16)) + handle
    try:
        folder = os.open(f"{root}/{pid}/root{mount.point}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fd = int(_LIBC.open_by_handle_at(folder, raw, os.O_PATH | os.O_CLOEXEC))
    finally:
        os.close(folder)
    if fd < 0:
        return ctypes.get_errno() in _CANNOT
    os.close(fd)
    return True
