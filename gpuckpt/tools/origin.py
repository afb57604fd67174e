"""How a program was started, as far as it can be seen while it runs: for starting it once more."""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.procfs import link, read, text
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

# <linux/auxvec.h>: where the path stands that was given to execve
_AT_EXECFN: Final = 31
_PAIR: Final = struct.Struct("=QQ")
_LONGEST: Final = 4096


class Origin(Value, frozen=True):
    """One program's.

    `program` is the path that was executed, "" if it cannot be seen; so is `umask` None. `groups`
    are the supplementary ones, `stdout` and `stderr` the regular files that it has as these.
    """

    program: str = ""
    umask: int | None = None
    groups: tuple[int, ...] = ()
    stdout: str = ""
    stderr: str = ""


def origin(folder: str, status: Mapping[str, str]) -> Origin:
    """Look at one process by its folder under /proc and its status file."""
    return Origin(
        program=_program(folder),
        umask=int(status["Umask"], 8) if "Umask" in status else None,
        groups=tuple(int(one) for one in status.get("Groups", "").split()),
        stdout=_file(f"{folder}/fd/1"),
        stderr=_file(f"{folder}/fd/2"),
    )


def _program(folder: str) -> str:
    """Return what execve was given: of `python` the file that was found in PATH."""
    try:
        raw = read(f"{folder}/auxv") or b""
        pairs = dict(_PAIR.iter_unpack(raw[: len(raw) // _PAIR.size * _PAIR.size]))
        if not (at := pairs.get(_AT_EXECFN, 0)):
            return ""
        fd = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(fd, _LONGEST, at)
        finally:
            os.close(fd)
    except (OSError, OverflowError):  # closed to us, or not there any more
        return ""
    return text(found.partition(b"\0")[0])


def _file(path: str) -> str:
    """Return the name of a regular file, "" for everything else and for one that has lost it."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - one of many small looks
    except OSError:
        return ""
    return (link(path) or "") if stat.S_ISREG(seen.st_mode) and seen.st_nlink else ""
