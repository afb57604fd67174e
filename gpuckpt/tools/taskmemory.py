"""The memory of other processes, read in place: a task's own, and what several share.

Nothing is allocated for it: bytes go from there into a buffer that the caller has.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.procfs import read, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_AT_ONCE: Final = 1024  # UIO_MAXIOV of <linux/uio.h>
_FIELDS: Final = 6

_libc = ctypes.CDLL(None)
_readv = _libc.process_vm_readv
_readv.restype = ctypes.c_ssize_t
_VECTOR: Final = (ctypes.c_void_p, ctypes.c_ulong)
_readv.argtypes = (ctypes.c_int, *_VECTOR, *_VECTOR, ctypes.c_ulong)


class Mapping(NamedTuple):
    """One line of a maps file; `name` is "" for memory that has none."""

    start: int
    end: int
    access: str
    name: str

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
                return done + self._slowly(view[done : done + size], some)
            done += size
        return done

    def _slowly(self, view: memoryview, stretches: Sequence[tuple[int, int]]) -> int:
        """Read what the process has no right to read: not all of it goes the quick way."""
        done = 0
        for address, length in stretches:
            got = _pread(self._fd, view[done : done + length], address)
            done += got
            if got < length:
                break
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
        done = 0
        for offset, length in stretches:
            part = view[done : done + length]
            got = _pread(self._fd, part, offset)
            if offset + got == self.end:
                behind = min(length - got, -self.end % PAGE)
                part[got : got + behind] = bytes(behind)
                got += behind
            done += got
            if got < length:
                break
        return done

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

    def task(self, pid: int) -> Memory:
        """Open all memory of a process; OSError if that may not be."""
        return TaskMemory(self.root, pid)

    def mapped(self, pid: int, mapping: Mapping) -> Memory:
        """Open what lies behind a mapping; OSError if that may not be."""
        return SharedMemory(f"{self.root}/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")

    def opened(self, pid: int, fd: int) -> Memory:
        """Open what lies behind a descriptor; OSError if that may not be."""
        return SharedMemory(f"{self.root}/{pid}/fd/{fd}")


def parse(maps: bytes) -> tuple[Mapping, ...]:
    """Read a maps file."""
    found = []
    for line in maps.splitlines():
        fields = line.split(None, _FIELDS - 1)
        start, _, end = fields[0].partition(b"-")
        name = text(fields[5]) if len(fields) == _FIELDS else ""
        found.append(Mapping(int(start, 16), int(end, 16), fields[1].decode("ascii"), name))
    return tuple(found)


def _address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]


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
