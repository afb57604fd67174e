"""The memory of other processes, read in place: a task's own, and what several share.

Nothing is allocated for it: bytes go from there into a buffer that the caller has.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from array import array
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.procfs import lines, read, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_AT_ONCE: Final = 1024  # UIO_MAXIOV of <linux/uio.h>
_FIELDS: Final = 6
# PAGEMAP_SCAN of <linux/fs.h>: struct pm_scan_arg, struct page_region, categories of pages
_PAGEMAP_SCAN: Final = 0xC0606610
_SCAN: Final = struct.Struct("12Q")
_REGION: Final = struct.Struct("3Q")
_REGIONS: Final = 4096
_FILE, _PRESENT, _SWAPPED, _ZERO = 1 << 2, 1 << 3, 1 << 4, 1 << 5
_NOT_OURS: Final = _FILE | _ZERO
_THERE: Final = _PRESENT | _SWAPPED
_HIGHEST: Final = 0x7FFFFFFFF000

_libc = ctypes.CDLL(None)
_readv = _libc.process_vm_readv
_readv.restype = ctypes.c_ssize_t
_VECTOR: Final = (ctypes.c_void_p, ctypes.c_ulong)
_readv.argtypes = (ctypes.c_int, *_VECTOR, *_VECTOR, ctypes.c_ulong)


class Mapping(NamedTuple):
    """One line of a maps file; `name` is "" for memory that has none.

    `offset` is where in its file it begins.
    """

    start: int
    end: int
    access: str
    name: str
    offset: int = 0

    @property
    def words(self) -> str:
        """What a user is told of it."""
        return f"{self.access} {self.name or 'anonymous'}"


class Memory(Protocol):
    """Memory that can be read from; from several threads as well."""

    @property
    def end(self) -> int:
        """Where it ends; what lies behind in its last page reads as zeros."""

    def fill(self, view: memoryview, stretches: Sequence[tuple[int, int]]) -> int:
        """Read stretches of (address, length) into a view, one behind the other.

        Returns how many bytes could be read before the first that could not.
        """

    def close(self) -> None:
        """Let go of it."""


class TaskMemory:
    """All memory of one process, also what the process itself may not read."""

    end: Final = 1 << 64

    def __init__(self, root: Path, pid: int) -> None:
        """Open it; OSError if this process may not."""
        self._pid = pid
        self._fd = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def fill(self, view: memoryview, stretches: Sequence[tuple[int, int]]) -> int:
        """See Memory: many stretches with one call, which copies once and is the quickest."""
        done = 0
        base = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for at in range(0, len(stretches), _AT_ONCE):
            some = stretches[at : at + _AT_ONCE]
            theirs = array("Q", [number for one in some for number in one])
            size = sum(theirs[1::2])
            ours = array("Q", [base + done, size])
            got = _readv(self._pid, _address(ours), 1, _address(theirs), len(some), 0)
            if got != size:
                # what the process has no right to read does not go the quick way
                return done + _one_by_one(view[done : done + size], some, partial(_pread, self._fd))
            done += size
        return done

    def close(self) -> None:
        """See Memory."""
        os.close(self._fd)


class SharedMemory:
    """Memory behind a file without a name, by its offsets; whoever maps or holds it shows it."""

    def __init__(self, path: str) -> None:
        """Open it by a link under /proc; OSError if this process may not."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.end = os.fstat(self._fd).st_size

    def fill(self, view: memoryview, stretches: Sequence[tuple[int, int]]) -> int:
        """See Memory."""
        return _one_by_one(view, stretches, self._read)

    def _read(self, part: memoryview, offset: int) -> int:
        got = _pread(self._fd, part, offset)
        if offset + got == self.end:
            behind = min(len(part) - got, -self.end % PAGE)
            part[got : got + behind] = bytes(behind)
            got += behind
        return got

    def close(self) -> None:
        """See Memory."""
        os.close(self._fd)


class Memories:
    """The memory of all processes, under the /proc at `root`."""

    def __init__(self, root: Path) -> None:
        """Look at nothing yet."""
        self.root = root

    def mappings(self, pid: int) -> tuple[Mapping, ...]:
        """Return what a process has mapped, in the order of addresses; nothing if it is gone."""
        return parse(read(f"{self.root}/{pid}/maps") or b"")

    def populated(self, pid: int) -> tuple[tuple[int, int], ...]:
        """Return where private memory of a process holds bytes of its own, as starts and ends.

        Memory that was never written has none, nor has a file. OSError before Linux 6.7.
        """
        with open(f"{self.root}/{pid}/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123
            return tuple(_scan(pagemap.fileno()))

    def task(self, pid: int) -> Memory:
        """Open all memory of a process; OSError if that may not be."""
        return TaskMemory(self.root, pid)

    def mapped(self, pid: int, mapping: Mapping) -> Memory:
        """Open what lies behind a mapping; OSError if that may not be."""
        return SharedMemory(f"{self.root}/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")

    def opened(self, pid: int, fd: int) -> Memory:
        """Open what lies behind a descriptor; OSError if that may not be."""
        return SharedMemory(f"{self.root}/{pid}/fd/{fd}")


def _scan(pagemap: int) -> Iterator[tuple[int, int]]:
    """Ask the kernel for the pages that are anonymous and not the page of zeros."""
    regions = bytearray(_REGIONS * _REGION.size)
    where = ctypes.addressof(ctypes.c_char.from_buffer(regions))
    start, before = 0, (0, 0)
    while start < _HIGHEST:
        ask = bytearray(_SCAN.pack(
            *(_SCAN.size, 0, start, _HIGHEST, 0, where, _REGIONS, 0),
            *(_NOT_OURS, _NOT_OURS, _THERE, _PRESENT),
        ))  # fmt: skip
        count = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, ask)
        start = _SCAN.unpack(ask)[4]
        for begin, end, _ in _REGION.iter_unpack(memoryview(regions)[: count * _REGION.size]):
            # beyond 512 regions Linux (6.18 as well) says that it stopped before those it has told
            start = max(start, end)
            if begin == before[1]:
                before = (before[0], end)
                continue
            if before[1]:
                yield before
            before = (begin, end)
    if before[1]:
        yield before


def parse(maps: bytes) -> tuple[Mapping, ...]:
    """Read a maps file."""
    found = []
    for line in lines(maps):
        fields = line.split(None, _FIELDS - 1)
        start, _, end = fields[0].partition(b"-")
        name = text(fields[5]) if len(fields) == _FIELDS else ""
        access, offset = fields[1].decode("ascii"), int(fields[2], 16)
        found.append(Mapping(int(start, 16), int(end, 16), access, name, offset))
    return tuple(found)


def covering(mappings: tuple[Mapping, ...], address: int) -> Mapping | None:
    """Return the mapping that an address is in."""
    at = bisect_right(mappings, address, key=lambda one: one.start) - 1
    return mappings[at] if at >= 0 and address < mappings[at].end else None


def _address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]


def _one_by_one(
    view: memoryview,
    stretches: Sequence[tuple[int, int]],
    read: Callable[[memoryview, int], int],
) -> int:
    """Read stretches one behind the other, up to the first that does not come whole."""
    done = 0
    for at, length in stretches:
        got = read(view[done : done + length], at)
        done += got
        if got < length:
            break
    return done


def _pread(fd: int, view: memoryview, offset: int) -> int:
    done = 0
    while done < len(view):
        try:
            got = os.preadv(fd, [view[done:]], offset + done)
        except OSError:  # nothing is mapped there, or it cannot be read
            break
        if not got:
            break
        done += got
    return done
