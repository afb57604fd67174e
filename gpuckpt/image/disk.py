"""What the kernel does with files that Python has no word for, and its errors in sentences."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, NoSpace, NotWritable, UsageError, WriteFailed
from gpuckpt.image import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
INSIDE = os.O_NOFOLLOW | os.O_CLOEXEC

_MIB = 1 << 20
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_SUCH_FLAG = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.renameat2.argtypes = (
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def rename_into_place(folder: int, old: str, new: str) -> None:
    """Rename `old` to `new` within the open folder, never over anything that is there.

    Raises:
        FileExistsError: `new` exists.
    """
    failed = _libc.renameat2(folder, os.fsencode(old), folder, os.fsencode(new), _RENAME_NOREPLACE)
    if not failed:
        return
    number = ctypes.get_errno()
    if number not in _NO_SUCH_FLAG:
        raise OSError(number, os.strerror(number), new)
    # NFS and others know no such flag. A look and a plain rename: for folders the kernel itself
    # refuses a target that holds anything.
    if present(folder, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def start_writeback(fd: int, offset: int = 0, size: int = 0) -> None:
    """Let the kernel begin to write what was written to `fd`; 0 bytes mean up to the end."""
    # A hint: where it is not supported the fsync at the end does all the work.
    _libc.sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


def present(folder: int, name: str) -> bool:
    """Whether the open folder has an entry of this name, be it a dangling link."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def new_folder(parent: int, name: str) -> int:
    """Make a folder with mode 0700 whatever the umask is, and return it open."""
    os.mkdir(name, 0o700, dir_fd=parent)
    os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)


def new_file(folder: int, name: str, flags: int = 0) -> int:
    """Make a file with mode 0600 whatever the umask is, and return it open for writing."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | INSIDE | flags, 0o600, dir_fd=folder)
    os.fchmod(fd, 0o600)
    return fd


def write_all(fd: int, data: bytes | memoryview, offset: int = 0) -> None:
    """Write every byte of `data` at `offset` of a file."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view = view[count:]
        offset += count


def write_parts(fd: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
    """Write all of `parts`, at most a frame, one after the other from `offset` on."""
    count = os.pwritev(fd, parts, offset)
    if count == sum(map(len, parts)):
        return
    for part in parts:  # rare: the disk is full, or a signal came
        size = len(part)
        if count < size:
            write_all(fd, memoryview(part)[count:], offset + count)
        offset += size
        count = max(0, count - size)


def image_around(place: Path) -> Path | None:
    """Return the image that a place is in, None for a place beside all images.

    Whatever lies in an image and is not its own counts as damage.
    """
    above = place.absolute().parents
    # Path.exists and Path.is_dir raise where a folder is closed to us
    inside = (one for one in above if os.path.exists(one / names.MANIFEST))  # noqa: PTH110
    return next((one for one in inside if os.path.isdir(one / names.CRIU_DIR)), None)  # noqa: PTH112


def room_left(fd: int) -> int | None:
    """Return the bytes this user can still write on the filesystem of `fd`, None if unknown."""
    with suppress(OSError):
        seen = os.fstatvfs(fd)
        return seen.f_bavail * seen.f_frsize
    return None


def creation_error(why: OSError, folder: Path, fd: int | None = None) -> GpuckptError:
    """Return the error for an image that cannot be begun in `folder`."""
    number = why.errno
    if number in _FULL:
        return NoSpace(f"there is no room in {folder}: {_room(fd)}")
    if number == errno.ENAMETOOLONG:
        return UsageError(f"the image's path is too long: {folder} and the name after it")
    reasons = {
        errno.ENOENT: ("does not exist", "Make it first (mkdir -p), or choose another folder."),
        errno.ENOTDIR: ("is not a folder", "Choose another place with -o."),
        errno.EROFS: ("is on a read-only filesystem", "Choose another place with -o."),
        errno.EACCES: ("cannot be written by this user", "Run it as root, or choose another."),
        errno.EPERM: ("cannot be written by this user", "Run it as root, or choose another."),
    }
    reason, hint = reasons.get(number or 0, (f"cannot be written: {why.strerror}", ""))
    return NotWritable(f"{folder} {reason}.", hint=hint)


def writing_error(why: OSError, folder: Path, fd: int | None) -> WriteFailed:
    """Return the error for an image that could not be written to its end."""
    if why.errno in _FULL:
        return WriteFailed(
            f"the disk of {folder} is full: {_room(fd)}",
            hint="Make room, or choose another place with -o.",
        )
    return WriteFailed(f"{folder} could not be written: {why.strerror}")


def _room(fd: int | None) -> str:
    free = None if fd is None else room_left(fd)
    return "its quota or disk is used up" if free is None else f"{free / _MIB:.1f} MiB are free"
