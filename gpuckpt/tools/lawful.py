"""In what the memory of a restored task may differ from what CRIU dumped, and why.

Each law names bytes that somebody else than the job has written since, and says what they must
be now. There is no tolerance: what no law explains is wrong.

rseq: the kernel writes the CPU that a thread stands on into the area that the thread registered,
and clears the pointer to its critical section, which CRIU 4.2.1 puts back later.
aio: the number of a ring for asynchronous I/O is that of the new ring.
droppable: pages of MAP_DROPPABLE read as zeros once the kernel has dropped them.
behind-end: what a job has written behind the end of a memfd, in its last page, is in no file.
vdso: the kernel's own code; where it is another kernel's, CRIU leads the old one there by jumps.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.taskmemory import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.tools.criumemory import Area, Rseq

# struct rseq of <linux/rseq.h>: cpu_id_start, cpu_id; rseq_cs; flags; node_id, mm_cid
_RSEQ_WRITTEN: Final = ((0, 8), (20, 28))
_RSEQ_CLEARED: Final = (8, 16)
_AIO_ID: Final = (0, 4)  # struct aio_ring of the kernel's fs/aio.c
# movabs $address, %rax; jmp *%rax; then breakpoints
_JUMP: Final = re.compile(rb"\x48\xb8.{8}\xff\xe0\xcc{4}", re.DOTALL)


class Laws:
    """What may differ in one memory."""

    def __init__(
        self, areas: Iterable[Area] = (), rseqs: Iterable[Rseq] = (), end: int = 1 << 64
    ) -> None:
        """Take a task's mappings, and the areas its threads have registered, or a memory's end."""
        self._end = end
        special = [one for one in areas if one.vdso or one.aio or one.droppable]
        self._areas = special
        self._rseqs = {one.address: one for one in rseqs}
        self._pages = {page for one in self._rseqs.values() for page in _pages(one)}

    def explain(self, address: int, was: bytes, now: bytes) -> dict[str, int] | None:
        """Say which law explains how many differing bytes of a page; None if some are wrong."""
        area = next((one for one in self._areas if one.start <= address < one.end), None)
        beyond = address + len(was) > self._end
        if area is None and not beyond and address & -PAGE not in self._pages:
            return None
        differing = [at for at in range(len(was)) if was[at] != now[at]]
        found: dict[str, int] = {}
        for law, right in self._lawful(area, address, now):
            explained = [at for at in differing if at in right]
            if explained:
                found[law] = found.get(law, 0) + len(explained)
                differing = [at for at in differing if at not in right]
        return found if not differing else None

    def _lawful(
        self, area: Area | None, address: int, now: bytes
    ) -> Iterator[tuple[str, frozenset[int]]]:
        if address + len(now) > self._end:
            yield "behind-end", frozenset(range(max(0, self._end - address), len(now)))
        if area is not None and area.droppable and not any(now):
            yield "droppable", frozenset(range(len(now)))
        if area is not None and area.aio:
            yield "aio", _part(area.start, _AIO_ID, address, now)
        if area is not None and area.vdso:
            yield "vdso", frozenset(_of_this_kernel(area, address, now))
        for rseq in self._rseqs.values():
            if rseq.address < address + len(now) and address < rseq.address + rseq.size:
                yield from _of_rseq(rseq, address, now)


def _of_rseq(rseq: Rseq, address: int, now: bytes) -> Iterator[tuple[str, frozenset[int]]]:
    for written in _RSEQ_WRITTEN:
        yield "rseq", _part(rseq.address, written, address, now)
    cleared = _part(rseq.address, _RSEQ_CLEARED, address, now)
    if not any(now[at] for at in cleared):
        yield "rseq", cleared


def _of_this_kernel(area: Area, address: int, now: bytes) -> Iterator[int]:
    at = address - area.start
    if now == _own_vdso()[at : at + len(now)]:
        yield from range(len(now))
    for jump in _JUMP.finditer(now):
        yield from range(*jump.span())


def _part(base: int, part: tuple[int, int], address: int, now: bytes) -> frozenset[int]:
    """Return where in a page the bytes are that begin and end so far behind `base`."""
    start, end = (base + at - address for at in part)
    return frozenset(range(max(0, start), min(len(now), end)))


def _pages(one: Rseq) -> range:
    return range(one.address & -PAGE, one.address + max(one.size, 1), PAGE)


def _own_vdso() -> bytes:
    """Return the vDSO of this kernel, which this process has as well."""
    for one in parse(Path("/proc/self/maps").read_bytes()):
        if one.name == "[vdso]":
            return ctypes.string_at(one.start, one.end - one.start)
    return b""
