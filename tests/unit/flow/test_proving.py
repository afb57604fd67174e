"""restore --prove on a host in memory: what differs is named and everything is undone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import RestoreFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning import proving
from gpuckpt.flow.returning.memory import Part
from gpuckpt.flow.returning.proving import Prover
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.image.frames import Frame
from gpuckpt.tools.criumemory import Rseq
from gpuckpt.tools.lawful import Laws
from gpuckpt.tools.pagemap import PAGE, Pagemap, Runs
from tests.fakes.criuimages import ADDRESS
from tests.fakes.host import ROOT_PID, FakeHost, FakeMemory

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.request import Proved, RestoreResult

PAGES = 73  # whole ones of the host's 300,000 bytes
TREE = 4


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    tools = FakeHost.with_job().toolbox(tmp_path / "state")
    return dump(tools, DumpRequest(ROOT_PID, tmp_path / "image"), Silent(), Interrupts()).image


def bring_back(
    image: Path, spoiled: dict[int, int], *, prove: bool = True
) -> tuple[FakeHost, RestoreResult]:
    host = FakeHost.with_job()
    host.restored = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    host.processes = {os.getpid(): host.processes[os.getpid()]}
    host.cuda.clear()
    host.spoiled = spoiled
    request = RestoreRequest(image, settle=0.0, prove=prove)
    try:
        return host, restore(host.toolbox(image.parent / "state"), request, Silent(), Interrupts())
    finally:
        if spoiled:
            assert set(host.processes) == {os.getpid()}


def test_all_of_it_is_proved(image: Path) -> None:
    _, result = bring_back(image, {})
    assert result.proved is not None
    assert (result.proved.bytes, result.proved.pages) == (TREE * PAGES * PAGE, TREE * PAGES)
    assert not result.proved.masked
    phase = next(one for one in result.receipt.phases if one.name == "prove")
    assert phase.bytes == TREE * PAGES * PAGE


def test_one_byte_is_named_and_nothing_is_left(image: Path) -> None:
    at = 17 * PAGE + 33
    with pytest.raises(RestoreFailed, match=f"1 place, {PAGE} bytes") as caught:
        bring_back(image, {ROOT_PID + 1: at})
    (found,) = caught.value.findings
    where = f"{ADDRESS + 17 * PAGE:#x}-{ADDRESS + 18 * PAGE:#x}"
    assert (found.id, found.pid) == ("memory-differs", ROOT_PID + 1)
    assert found.object == f"pid {ROOT_PID + 1} {where}"
    for said in ("rw-p [heap]", f"{ADDRESS + at:#x}", f"pages-{ROOT_PID + 1}.img", str(17 * PAGE)):
        assert said in found.reason
    assert bring_back(image, {})[1].proved


def test_who_asks_for_no_proof_gets_none(image: Path) -> None:
    host, result = bring_back(image, {}, prove=False)
    assert result.proved is None
    assert "memory.task" not in host.calls


class _File:
    """A stored file of two frames, cut in the middle of a page."""

    def __init__(self, data: bytes, cut: int, digests: tuple[bytes, bytes]) -> None:
        self.data, self.cut = data, cut
        self.table = [
            Frame(0, 0, cut, cut, digests[0]),
            Frame(1, cut, len(data) - cut, len(data) - cut, digests[1]),
        ]

    def raw(self, frame: Frame) -> bytes:
        return self.data[frame.offset : frame.offset + frame.raw]


def compared(was: bytes, now: bytes, laws: Laws | None = None) -> tuple[Prover, Proved]:
    runs = Runs([(ADDRESS, len(was))])
    file = _File(was, PAGE + 100, (bytes(32), bytes(32)))  # digests that are those of nothing
    part = Part(7, file, Pagemap(3, runs), FakeMemory(now), laws or Laws())  # type: ignore[arg-type]
    prover = Prover(Interrupts(), lambda _: None)
    return prover, prover.run([part])


def test_pages_that_follow_each_other_are_told_of_once() -> None:
    was = os.urandom(12 * PAGE)
    now = bytearray(was)
    for page in (0, 2, 3, 4, 9):
        now[page * PAGE + 5] ^= 1
    prover, proved = compared(was, bytes(now))
    found = [(one.start, one.end, one.first) for one in prover.differences]
    page = [ADDRESS + number * PAGE for number in range(13)]
    assert found == [
        (page[0], page[1], page[0] + 5),
        (page[2], page[5], page[2] + 5),
        (page[9], page[10], page[9] + 5),
    ]
    assert proved.bytes == 7 * PAGE


def test_a_page_in_two_frames_is_compared_in_two_parts() -> None:
    was = os.urandom(4 * PAGE)
    now = bytearray(was)
    now[PAGE + 99] ^= 1
    prover, _ = compared(was, bytes(now))
    assert [(one.start, one.end) for one in prover.differences] == [
        (ADDRESS + PAGE, ADDRESS + PAGE + 100)
    ]


def test_what_a_law_explains_is_counted() -> None:
    was = os.urandom(4 * PAGE)
    now = bytearray(was)
    now[3 * PAGE + 64] ^= 1
    prover, proved = compared(was, bytes(now), Laws([], [Rseq(ADDRESS + 3 * PAGE + 64, 32)]))
    assert not prover.differences
    assert proved.masked == {"rseq": 1}
    assert proved.bytes == 4 * PAGE - 1


def test_memory_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMemory, "fill", lambda *_: 0)
    prover, proved = compared(os.urandom(4 * PAGE), bytes(4 * PAGE))
    assert [one.missing for one in prover.differences] == [True]
    assert proved.bytes == 0


def test_a_long_list_is_cut(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "MOST_TOLD", 1)
    with pytest.raises(RestoreFailed, match=r"2 places, .* of which 1 are listed") as caught:
        bring_back(image, {ROOT_PID: 5, ROOT_PID + 1: 5})
    assert len(caught.value.findings) == 1
