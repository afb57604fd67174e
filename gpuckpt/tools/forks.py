"""What children have of the devices their parent opened: the very same, by a fork.

A forked child has the descriptors and mappings of its parent. The GPU's are of no use to it, as
CUDA does not work in a forked child, but they are there, and no driver call closes them.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.model import DeviceUse
from gpuckpt.tools.descriptors import plain, targets
from gpuckpt.tools.mappings import area_link
from gpuckpt.tools.procfs import lines, read, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYS_KCMP: Final = 312  # x86-64; CRIU itself cannot do without it
_KCMP_FILE: Final = 0
NODES: Final = re.compile(r"/dev/nvidia(?!-fs).*")


def inherited(root: Path, pids: Iterable[int]) -> frozenset[DeviceUse]:
    """Return what each of the processes holds of GPUs in common with another one of them.

    A descriptor counts if another process has the same open file under the same number, a mapping
    if another has it at the same address. Whoever opened it is among them, too.
    """
    return frozenset((*_opened(root, tuple(pids)), *_mapped(root, tuple(pids))))


def _opened(root: Path, pids: tuple[int, ...]) -> Iterator[DeviceUse]:
    having: dict[tuple[int, str], list[int]] = {}
    for pid in pids:
        with suppress(OSError):  # whoever may not be looked into shares nothing
            for fd, target in targets(f"{root}/{pid}"):
                if NODES.fullmatch(plain(target)[0]):
                    having.setdefault((fd, plain(target)[0]), []).append(pid)
    for (fd, path), those in having.items():
        for pid in those:
            if any(_same(pid, other, fd) for other in those if other != pid):
                with suppress(OSError):
                    number = os.stat(f"{root}/{pid}/fd/{fd}").st_rdev  # noqa: PTH116 - cheaper
                    yield DeviceUse(pid, fd, path, number)


def _same(one: int, other: int, fd: int) -> bool:
    """Whether a descriptor is the same open file in two processes; no, if that is not told."""
    answer = _LIBC.syscall(
        ctypes.c_long(_SYS_KCMP),
        ctypes.c_long(one),
        ctypes.c_long(other),
        ctypes.c_long(_KCMP_FILE),
        ctypes.c_long(fd),
        ctypes.c_long(fd),
    )
    return bool(answer == 0)


def _mapped(root: Path, pids: tuple[int, ...]) -> Iterator[DeviceUse]:
    areas = {pid: _areas(f"{root}/{pid}") for pid in pids}
    for pid, own in areas.items():
        others = {line for other, theirs in areas.items() if other != pid for line in theirs}
        for path in sorted(set(own.values())):
            mine = [line for line, known in own.items() if known == path]
            if others.issuperset(mine):
                link = area_link(f"{root}/{pid}", mine[0].partition(" ")[0])
                with suppress(OSError):
                    yield DeviceUse(pid, None, path, os.stat(link).st_rdev)  # noqa: PTH116


def _areas(process: str) -> dict[str, str]:
    """Return the lines of the maps file that are of GPUs, each with its path."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for raw in lines(read(f"{process}/maps") or b""):
            line = text(raw)
            path = plain(line.partition("/")[1] + line.partition("/")[2])[0]
            if NODES.fullmatch(path):
                found[line] = path
    return found
