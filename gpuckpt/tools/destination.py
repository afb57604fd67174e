"""A folder as a place for an image: which filesystem, how many files, how fast it takes bytes."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Final

from gpuckpt.tools.places import mounts
from gpuckpt.value import Value

_BLOCK: Final = 4 << 20
_MOST: Final = 48 << 20
_SECONDS: Final = 0.4


class Place(Value, frozen=True):
    """What a folder is. `free_inodes` is None where the filesystem has no fixed number."""

    filesystem: str = ""
    mount: str = ""
    network: bool = False
    free_inodes: int | None = None


def place(folder: Path, proc: Path = Path("/proc")) -> Place:
    """Return which filesystem a folder is on.

    Raises:
        OSError: the filesystem cannot be asked.
    """
    found = os.statvfs(folder)
    here = folder.resolve()
    above = (here, *here.parents)
    holding = [one for one in mounts(proc / "self").values() if Path(one.point) in above]
    mount = max(holding, key=lambda one: len(one.point), default=None)
    return Place(
        filesystem=mount.filesystem if mount else "",
        mount=mount.point if mount else "",
        network=mount.remote if mount else False,
        free_inodes=found.f_favail if found.f_files else None,
    )


def write_speed(folder: Path) -> float | None:
    """Write a few tens of MiB in at most about half a second; bytes a second, None if refused.

    The file has no name, or loses it at once, and nothing of it is left. The bytes do not
    compress: a filesystem that does must not look faster than it is for tensors.
    """
    try:
        fd = _open(folder)
    except OSError:
        return None
    block = mmap.mmap(-1, _BLOCK)  # O_DIRECT wants whole pages
    try:
        block.write(os.urandom(_BLOCK))
        done, begun = 0, time.monotonic()
        while done < _MOST and time.monotonic() - begun < _SECONDS:
            done += os.write(fd, block)
        os.fdatasync(fd)
        return done / max(time.monotonic() - begun, 1e-6)
    except OSError:
        return None
    finally:
        os.close(fd)
        block.close()


def _open(folder: Path) -> int:
    """Open a file without a name, past the page cache where that is possible."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    for extra in (os.O_TMPFILE | os.O_DIRECT, os.O_TMPFILE):
        try:
            return os.open(folder, flags | extra, 0o600)
        except OSError:  # NFS and some others know neither
            continue
    name = folder / f".gpuckpt-speed-{os.getpid()}"
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)  # noqa: PTH108 - beside the os.open it belongs to
    return fd
