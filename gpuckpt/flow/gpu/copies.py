"""The copies of GPU memory that the driver makes in its processes, compared over a round trip.

What a checkpoint brings is memory that was not there before it: pages with bytes of their own
in mappings that had none while the process was only locked, malloc's arenas left out. They are
digested, the driver gives them back to the GPU and takes them again, and must bring the same bytes,
be it to other places. Nothing of the job uses the GPU in between: the lock is held all the time.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from gpuckpt.errors import HostUnfit
from gpuckpt.flow.gpu.clock import blank
from gpuckpt.flow.request import CopiesProved
from gpuckpt.flow.work.cores import PIECE, on_all_cores
from gpuckpt.flow.work.stretches import inside, minus, size, touches
from gpuckpt.model import blocker, warning
from gpuckpt.tools.taskmemory import covering
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.stretches import Stretch
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding
    from gpuckpt.tools.taskmemory import Mapping, Memory

_MOST_TOLD: Final = 20
_ARENA: Final = 64 << 20  # HEAP_MAX_SIZE of glibc's malloc
_REMEDY: Final = (
    "Do not dump this job: the driver does not bring back what it took. The job itself has what "
    "the last copy had."
)


class Copy(Value, frozen=True):
    """One stretch of a process's memory that a checkpoint brought, with a digest of each piece.

    `stamps` is how many of its pages have the GPU's time, which was left out of the digests.
    """

    pid: int
    start: int
    end: int
    digests: tuple[bytes, ...]
    stamps: int = 0

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.start


class Copies:
    """The copies of one rehearsal; its methods are called in the order in which they stand."""

    def __init__(
        self,
        tools: Toolbox,
        interrupts: Interrupts,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Know of no process yet; `advance` is told of bytes that were read."""
        self._tools = tools
        self._interrupts = interrupts
        self.advance = advance
        self._in_use: dict[int, list[Stretch]] = {}
        self._before: dict[int, int] = {}
        self._first: list[Copy] = []
        self._elsewhere = 0

    def locked(self, pids: Iterable[int]) -> None:
        """Remember what memory the processes have while their GPU memory is on the GPU.

        Raises:
            HostUnfit: the kernel does not tell.
        """
        for pid in pids:
            try:
                there = self._tools.memory.populated(pid)
            except OSError as why:
                raise HostUnfit(
                    f"the kernel does not tell which memory process {pid} has: {why.strerror}",
                    hint="Linux 6.7 or newer does; rehearse without --prove.",
                ) from why
            mappings = [(one.start, one.end) for one in self._tools.memory.mappings(pid)]
            self._in_use[pid] = [one for one in mappings if touches(one, there)]
            self._before[pid] = size(there)

    def first(self) -> None:
        """Digest what the checkpoint has brought to every process."""
        fresh = {pid: self._fresh(pid) for pid in self._in_use}
        self._elsewhere = sum(self._grown(pid) - size(fresh[pid]) for pid in fresh)
        self._first = self._digested(fresh)

    def second(self) -> tuple[CopiesProved, tuple[Finding, ...]]:
        """Compare with what the second checkpoint has brought; return what is not the same."""
        there = {pid: self._tools.memory.populated(pid) for pid in self._in_use}
        stayed = [one for one in self._first if inside((one.start, one.end), there[one.pid])]
        again = {pid: [(c.start, c.end) for c in stayed if c.pid == pid] for pid in there}
        now = {(one.pid, one.start): one for one in self._digested(again)}
        wrong = [one for one in self._first if now.get((one.pid, one.start)) != one]
        right = {(one.pid, one.start, one.end) for one in self._first} - {
            (one.pid, one.start, one.end) for one in wrong
        }
        others = {
            pid: minus(self._fresh(pid), [(s, e) for p, s, e in sorted(right) if p == pid])
            for pid in {one.pid for one in wrong}
        }
        lost = _unmatched(wrong, self._digested(others))
        proved = CopiesProved(
            bytes=sum(one.size for one in self._first) - sum(one.size for one in lost),
            places=len(self._first) - len(lost),
            moved=len(wrong) - len(lost),
            elsewhere=max(0, self._elsewhere),
            stamps=sum(one.stamps for one in self._first),
        )
        return proved, tuple(self._findings(lost, now))

    def _fresh(self, pid: int) -> list[Stretch]:
        """Return the memory with bytes in it that was not in use when the process was locked."""
        fresh = minus(self._tools.memory.populated(pid), self._in_use[pid])
        return minus(fresh, _arenas(self._tools.memory.mappings(pid)))

    def _grown(self, pid: int) -> int:
        return size(self._tools.memory.populated(pid)) - self._before[pid]

    def _digested(self, places: dict[int, list[Stretch]]) -> list[Copy]:
        tasks: list[Callable[[memoryview], None]] = []
        filled: list[tuple[int, Stretch, list[bytes], list[int]]] = []
        with ExitStack() as opened:
            for pid in (pid for pid, stretches in places.items() if stretches):
                memory = self._tools.memory.task(pid)
                opened.callback(memory.close)
                for start, end in places[pid]:
                    pieces = [(at, min(PIECE, end - at)) for at in range(start, end, PIECE)]
                    digests, stamps = [b""] * len(pieces), [0] * len(pieces)
                    filled.append((pid, (start, end), digests, stamps))
                    tasks += (
                        partial(self._digest, memory, piece, (digests, stamps, number))
                        for number, piece in enumerate(pieces)
                    )
            on_all_cores(tasks, self._interrupts)
        return [
            Copy(pid, *where, tuple(found), sum(stamps)) for pid, where, found, stamps in filled
        ]

    def _digest(
        self,
        memory: Memory,
        piece: Stretch,
        to: tuple[list[bytes], list[int], int],
        view: memoryview,
    ) -> None:
        """Digest one piece of (address, size); one that cannot be read is like no other."""
        (_, length), (digests, stamps, number) = piece, to
        if memory.fill(view, [piece]) == length:
            stamps[number] = blank(view[:length])
            digests[number] = blake3(view[:length]).digest(16)
        self.advance(length)

    def _findings(self, lost: list[Copy], now: dict[tuple[int, int], Copy]) -> Iterator[Finding]:
        if not self._first:
            yield warning(
                "gpu-copies-unseen",
                "GPU memory",
                "The checkpoint brought no new memory to the processes: nothing was compared.",
                "Rehearse with --dump, and look at what the job computes after a restore.",
            )
        for one in lost[:_MOST_TOLD]:
            where = f"{one.start:#x}-{one.end:#x}"
            told = _told(one, now.get((one.pid, one.start)))
            mapping = covering(self._tools.memory.mappings(one.pid), one.start)
            what = mapping.words if mapping is not None else "not mapped now"
            reason = f"The copy of GPU memory at {where} ({what}) of process {one.pid} {told}."
            yield blocker("gpu-bytes-differ", f"pid {one.pid} {where}", reason, _REMEDY, one.pid)


def _told(one: Copy, again: Copy | None) -> str:
    if again is None or len(again.digests) != len(one.digests):
        return f"({one.size} bytes) did not come again"
    pairs = enumerate(zip(one.digests, again.digests, strict=True))
    pieces = [number for number, (was, now) in pairs if was != now or not now]
    first = one.start + pieces[0] * PIECE
    number = f"{len(pieces)} of its {len(one.digests)} pieces of {PIECE >> 10} KiB"
    return f"came with other bytes: {number}, the first at {first:#x}"


def _unmatched(wanted: list[Copy], found: list[Copy]) -> list[Copy]:
    """Return those copies whose bytes are in none of the others, each of which counts once."""
    left: dict[tuple[int, int, tuple[bytes, ...]], int] = {}
    for one in found:
        key = (one.pid, one.size, one.digests)
        left[key] = left.get(key, 0) + all(one.digests)
    lost = []
    for one in wanted:
        key = (one.pid, one.size, one.digests)
        if left.get(key, 0):
            left[key] -= 1
        else:
            lost.append(one)
    return lost


def _arenas(mappings: tuple[Mapping, ...]) -> list[Stretch]:
    """Return what glibc's malloc has for threads: 64 MiB each, the rest of which is closed."""
    pairs = pairwise(mappings)
    return [
        (one.start, one.end)
        for one, rest in pairs
        if one.start % _ARENA == 0 and one.access == "rw-p" and not one.name
        if rest.access == "---p" and (rest.start, rest.end) == (one.end, one.start + _ARENA)
    ]
