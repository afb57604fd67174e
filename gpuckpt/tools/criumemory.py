"""What CRIU's images say of the memory of a tree, beside its pages: areas, rseq, shared memory.

Field numbers and bits are those of CRIU 4.2.1.
"""

from __future__ import annotations

from typing import Final

from gpuckpt.tools.wire import records
from gpuckpt.value import Value

_MM: Final = 0x57492820
_CORE: Final = 0x55053847
_IDS: Final = 0x54432030
_FDINFO: Final = 0x56213732
_FILES: Final = 0x56303138
_MEMFD: Final = 0x48453499

_VDSO: Final = 1 << 3
_ANONYMOUS_SHARED: Final = 1 << 8
_AIO: Final = 1 << 13
_KERNEL: Final = 1 << 2 | 1 << 12 | 1 << 17  # vsyscall, vvar, uprobes
_MEMFD_AREA: Final = 1 << 14
_DROPPABLE: Final = 0x08  # MAP_DROPPABLE of <linux/mman.h>, in the place of the sharing bits
_SHARING: Final = 0x0F


class Area(Value, frozen=True):
    """One mapping of a task.

    `shared` numbers the shared memory behind it, `memfd` is CRIU's number for the open memfd; 0 if
    there is no such thing. `kernel`: its pages are the kernel's and in no image.
    """

    start: int
    end: int
    shared: int
    memfd: int
    vdso: bool
    aio: bool
    droppable: bool
    kernel: bool = False


class Rseq(Value, frozen=True):
    """The area that a thread has registered for restartable sequences."""

    address: int
    size: int


class Memfd(Value, frozen=True):
    """A memfd: `shared` numbers its memory, `files` are CRIU's numbers for its descriptions."""

    shared: int
    files: frozenset[int]


def read_areas(raw: bytes) -> tuple[Area, ...]:
    """Read mm-PID.img.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    found = []
    for mm in records(raw, _MM, "mm"):
        for one in mm.messages(14):
            status = one.number(7)
            number, memfd = one.number(4), status & _MEMFD_AREA
            found.append(
                Area(
                    start=one.number(1),
                    end=one.number(2),
                    shared=number if status & _ANONYMOUS_SHARED and not memfd else 0,
                    memfd=number if memfd else 0,
                    vdso=bool(status & _VDSO),
                    aio=bool(status & _AIO),
                    kernel=bool(status & _KERNEL),
                    droppable=one.number(6) & _SHARING == _DROPPABLE,
                )
            )
    return tuple(found)


def read_rseq(raw: bytes) -> Rseq | None:
    """Read core-TID.img for the thread's rseq area, None if it has none.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    core = next(records(raw, _CORE, "core"), None)
    thread = core.message(5) if core is not None else None
    rseq = thread.message(15) if thread is not None else None
    if rseq is None or not rseq.number(1):
        return None
    return Rseq(rseq.number(1), rseq.number(2))


def read_files_id(raw: bytes) -> int:
    """Read ids-PID.img for the number of the task's fdinfo image.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    ids = next(records(raw, _IDS, "ids"), None)
    return ids.number(2) if ids is not None else 0


def read_descriptors(raw: bytes) -> dict[int, int]:
    """Read fdinfo-N.img: a descriptor for each of CRIU's numbers of open files.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    return {one.number(1): one.number(4) for one in records(raw, _FDINFO, "fdinfo")}


def read_memfds(memfds: bytes, files: bytes) -> tuple[Memfd, ...]:
    """Read memfd.img, and files.img for who has them open.

    Raises:
        ImageDamaged: these bytes are no such images.
    """
    opened = _opened(files)
    inodes = records(memfds, _MEMFD, "memfd.img")
    return tuple(Memfd(one.number(5), frozenset(opened.get(one.number(7), ()))) for one in inodes)


def _opened(files: bytes) -> dict[int, list[int]]:
    """Return the numbers of the open files of each memfd."""
    found: dict[int, list[int]] = {}
    for one in records(files, _FILES, "files.img"):
        if memfd := one.message(20):
            found.setdefault(memfd.number(5), []).append(memfd.number(1))
    return found
