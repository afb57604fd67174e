"""restore --prove: all memory of a restored tree is read back and compared with its image.

It is done while every task stands stopped, on all cores. A frame is compared by its digest; only
one that differs is unpacked and compared page by page. What may differ, gpuckpt.tools.lawful knows;
everything else is told by process, address and mapping.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from blake3 import blake3
from msgspec.structs import replace

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.request import Proved
from gpuckpt.flow.returning.beyond import Beyond
from gpuckpt.flow.returning.memory import Parts
from gpuckpt.flow.work.cores import PIECE, on_all_cores
from gpuckpt.image.damage import Damaged, refusal
from gpuckpt.model import blocker, warning
from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.taskmemory import covering
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuckpt.flow.returning.memory import Part
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.frames import Frame
    from gpuckpt.image.store import Image
    from gpuckpt.model import Finding
    from gpuckpt.tools.pagemap import Run

MOST_TOLD: Final = 20
_PAGES: Final = "pages-"
_REMEDY: Final = "The image is intact: restore it again, and look for a cause in dmesg and RAM."


class Difference(Value, frozen=True, order=True):
    """Memory without a gap that is not as in the image.

    `first` is the first byte that differs, `offset` where `start` lies in CRIU's `image`. Those of
    shared memory are offsets in it, and `place` says who shows it. `missing`: it is not there.
    """

    pid: int
    start: int
    end: int
    first: int
    image: str
    offset: int
    place: str
    missing: bool


def prove(
    operation: Operation, image: Image, read: Callable[[str], bytes], pids: Sequence[int]
) -> Proved:
    """Compare the memory of a whole tree that stands stopped.

    `read` gives CRIU's small images, `pids` are the numbers of the image's processes on this host.

    Raises:
        RestoreFailed: some of it is not as in the image, or cannot be read.
        Interrupted: a signal came.
        ImageError: the image itself is damaged.
    """
    tree = image.manifest.tree
    here = {one.pid: pid for one, pid in zip(tree, pids, strict=True)}
    total = sum(one.raw_size for one in image.manifest.files if one.name.startswith(_PAGES))
    with (
        operation.record.phase("prove", "memory against the image", total) as step,
        Parts(operation.tools, image, read, here) as parts,
    ):
        prover = Prover(operation.interrupts, step.advance)
        try:
            found = parts.find(image.manifest)
            proved = prover.run(found)
            beyond = Beyond(operation.tools)
            surplus = beyond.run(found, operation.interrupts)
        except OSError as why:
            raise RestoreFailed(
                f"the memory of the restored tasks cannot be read back: {why}",
                hint="Restore without --prove, or as a user who may read it.",
            ) from why
        except Damaged as why:
            raise refusal(image.path, [why.damage]) from why
        wrong = [_finding(operation.tools, one) for one in prover.differences[:MOST_TOLD]]
        if wrong:
            raise RestoreFailed(_summary(prover.differences), hint=_REMEDY, findings=wrong)
        findings = (*map(_lost, parts.lost), *surplus)
        return replace(proved, beyond=beyond.bytes, findings=findings)


def _summary(differences: list[Difference]) -> str:
    size = sum(one.end - one.start for one in differences)
    places = f"{len(differences)} place{'s' * (len(differences) > 1)}"
    more = f", of which {MOST_TOLD} are listed" if len(differences) > MOST_TOLD else ""
    return f"the restored memory is not that of the image: {places}, {size} bytes in all{more}"


def _finding(tools: Toolbox, one: Difference) -> Finding:
    where = f"{one.start:#x}-{one.end:#x}"
    there = f"{one.image} has it at offset {one.offset}"
    if one.place:
        what = f"shared memory ({one.place}) at offset {where}"
    else:
        mapping = covering(tools.memory.mappings(one.pid), one.start)
        what = f"memory at {where} ({mapping.words if mapping else 'not mapped'})"
    if one.missing:
        reason = f"The {what} of process {one.pid} cannot be read; {there}."
    else:
        first = f"the first byte that differs is at {one.first:#x}"
        reason = f"The {what} of process {one.pid} is not as it was dumped: {first}; {there}."
    return blocker("memory-differs", f"pid {one.pid} {where}", reason, _REMEDY, one.pid)


def _lost(name: str) -> Finding:
    return warning(
        "memory-unproved",
        name,
        f"The memory of {name} is open or mapped nowhere in the tree, so it was not compared.",
        "It is on its way through a socket, say; nothing can be done about it.",
    )


class Prover:
    """One comparison of one restored tree."""

    def __init__(self, interrupts: Interrupts, advance: Callable[[int], None]) -> None:
        """Have nothing to compare yet; `advance` is told of bytes that were."""
        self._interrupts = interrupts
        self._advance = advance
        self._lock = threading.Lock()
        self._masked: Counter[str] = Counter()
        self._bytes = 0
        self.differences: list[Difference] = []

    def run(self, parts: Iterable[Part]) -> Proved:
        """Compare every frame; what is wrong is in `differences` then.

        Raises:
            Interrupted: a signal came.
            ImageError: the image itself is damaged.
        """
        frames = ((part, start, frame) for part in parts for start, frame in _frames(part))
        on_all_cores((partial(self._frame, *one) for one in frames), self._interrupts)
        self.differences = list(_joined(sorted(self.differences)))
        wrong = sum(one.end - one.start for one in self.differences)
        same = self._bytes - wrong - self._masked.total()
        return Proved(same, self._bytes // PAGE, dict(self._masked))

    def _frame(self, part: Part, start: int, frame: Frame, view: memoryview) -> None:
        if not _same(part, start, frame, view):
            self._compare(part, start, frame, view)
        with self._lock:
            self._bytes += frame.raw
        self._advance(frame.raw)

    def _compare(self, part: Part, start: int, frame: Frame, view: memoryview) -> None:
        """Look for the pages of a frame that are not as they were."""
        raw = part.file.raw(frame)
        for at in range(0, frame.raw, PIECE):
            was = raw[at : at + PIECE]
            runs = list(part.pagemap.runs.within(start + at, start + at + len(was)))
            if _read(part, runs, view) == len(was) and view[: len(was)].tobytes() == was:
                continue
            for page in (page for run in runs for page in _pages(run)):
                behind = page.offset - start
                read = _read(part, [page], view)
                self._look_at(part, page, raw[behind : behind + page.length], view[:read].tobytes())

    def _look_at(self, part: Part, page: Run, was: bytes, now: bytes) -> None:
        if now == was:
            return
        missing = len(now) < len(was)
        lawful = None if missing else part.laws.explain(page.address, was, now)
        with self._lock:
            if lawful is not None:
                self._masked.update(lawful)
                return
            at = next((at for at, byte in enumerate(now) if byte != was[at]), len(now))
            self.differences.append(
                Difference(
                    pid=part.pid,
                    start=page.address,
                    end=page.address + page.length,
                    first=page.address + at,
                    image=part.pagemap.pages,
                    offset=page.offset,
                    place=part.place,
                    missing=missing,
                )
            )


def _frames(part: Part) -> Iterator[tuple[int, Frame]]:
    start = 0
    for frame in part.file.table:
        yield start, frame
        start += frame.raw


def _same(part: Part, start: int, frame: Frame, view: memoryview) -> bool:
    """Whether the memory that a frame is of has the frame's digest."""
    digest = blake3()
    for at in range(start, start + frame.raw, PIECE):
        size = min(PIECE, start + frame.raw - at)
        if _read(part, part.pagemap.runs.within(at, at + size), view) < size:
            return False
        digest.update(view[:size])
    return digest.digest() == frame.digest


def _read(part: Part, runs: Iterable[Run], view: memoryview) -> int:
    return part.memory.fill(view, [(run.address, run.length) for run in runs])


def _pages(run: Run) -> Iterator[Run]:
    """Cut a run where pages end."""
    address, end = run.address, run.address + run.length
    while address < end:
        length = min(end, (address & -PAGE) + PAGE) - address
        yield run._replace(
            address=address, length=length, offset=run.offset + address - run.address
        )
        address += length


def _joined(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Make one of those that follow each other."""
    before: Difference | None = None
    for one in differences:
        if before is not None and _follows(before, one):
            before = replace(before, end=one.end)
            continue
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def _follows(before: Difference, one: Difference) -> bool:
    alike = (one.pid, one.image, one.missing) == (before.pid, before.image, before.missing)
    return alike and one.start == before.end
