"""Bytes that wait in memory: where, for how long, and what becomes of the memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import WriteFailed
from gpuckpt.image import reserve
from gpuckpt.image.buffers import Buffer, Buffers, room_for
from gpuckpt.image.codec import Codec
from gpuckpt.image.crew import Crew
from gpuckpt.image.frames import FRAME_SIZE
from gpuckpt.image.pack import Packer
from gpuckpt.image.sink import FileSink, Folder
from tests.image_streams import PATIENCE, feed, start_store, threads

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
EACH = room_for(FRAME_SIZE)


def told_of(total: int) -> tuple[Buffers, list[int]]:
    buffers, told = Buffers(total), list[int]()

    def ready(made: list[Buffer]) -> bool:
        told.append(len(made))
        return buffers.add(made)

    reserve.reserve(total, ready)
    return buffers, told


def test_reserved_memory_is_cut_into_buffers_that_share_nothing() -> None:
    buffers, told = told_of(20 * EACH + 5)
    assert sum(told) == 20
    taken = [buffers.take(FRAME_SIZE) for _ in range(20)]
    for number, one in enumerate(taken):
        one.view[:] = bytes([number]) * len(one.view)
    assert [one.view[-1] for one in taken] == list(range(20))
    assert buffers.take_spare(FRAME_SIZE) is None


def test_a_kernel_that_cannot_touch_memory_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.14: then we do it."""
    monkeypatch.setattr(reserve, "_POPULATE_WRITE", 9999)
    _, told = told_of(3 * EACH)
    assert sum(told) == 3


def test_memory_that_is_not_there_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: int) -> list[Buffer]:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(reserve, "_touched", refuses)
    buffers, told = told_of(3 * EACH)
    assert not told
    assert buffers.take(FRAME_SIZE).size >= FRAME_SIZE


def test_what_is_given_back_goes_once_all_was_read() -> None:
    buffers, _ = told_of(2 * EACH)
    one = buffers.take(FRAME_SIZE)
    buffers.shed()
    buffers.give(one)
    assert not buffers._free
    assert buffers._made == 0


def test_a_crew_that_is_held_works_when_it_is_released() -> None:
    crew, done = Crew("held", 2), threading.Semaphore(0)
    crew.hold(0)
    for _ in range(5):
        crew.do(done.release)
    assert not done.acquire(timeout=0.05)
    crew.release()
    for _ in range(5):
        assert done.acquire(timeout=PATIENCE)
    crew.do(done.release)
    assert done.acquire(timeout=PATIENCE)
    crew.dismiss()


def test_nothing_is_packed_or_written_before_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small images included: a disk that hangs must keep nobody from reading."""
    packed, may = list[int](), threading.Event()
    frame, append = Codec.frame, FileSink.append

    def watched(self: Codec, raw: memoryview, *args: object) -> object:
        packed.append(len(raw))
        return frame(self, raw, *args)  # type: ignore[arg-type]

    def held(self: FileSink, parts: object) -> object:
        assert may.wait(PATIENCE)
        return append(self, parts)  # type: ignore[arg-type]

    monkeypatch.setattr(Codec, "frame", watched)
    monkeypatch.setattr(FileSink, "append", held)
    monkeypatch.setattr("gpuckpt.image.pack.cores", lambda: 2)
    packer = Packer(Folder(tmp_path), memory=18 * MIB, spool=64 * MIB, read_first=True)
    with threads() as pool:
        for name, size in (("pages-1.img", 40 * MIB), ("pstree.img", 100)):
            writer, stored = start_store(pool, packer, name)
            pool.submit(feed, writer, bytes([7]) * size)
            stored.result(PATIENCE)
        assert [size for size in packed if size > MIB] == []
        written: list[int] = []
        packer.on_packed = written.append
        packer.received()
        may.set()
        entries = packer.finish()
    assert sum(written) == 40 * MIB
    assert sorted(entry.raw_size for entry in entries) == [100, 40 * MIB]


def test_packers_work_as_soon_as_memory_runs_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may grow after it was looked at."""
    monkeypatch.setattr("gpuckpt.image.pack.cores", lambda: 2)
    packer = Packer(Folder(tmp_path), memory=18 * MIB, spool=8 * MIB, read_first=True)
    with threads() as pool:
        writer, stored = start_store(pool, packer, "pages-1.img")
        pool.submit(feed, writer, bytes([7]) * (60 * MIB))
        stored.result(PATIENCE)
        packer.received()
        (entry,) = packer.finish()
    assert entry.raw_size == 60 * MIB


def test_an_abort_ends_the_making_of_memory(tmp_path: Path) -> None:
    packer, told = Packer(Folder(tmp_path), spool=8 << 30), list[int]()

    def count(size: int) -> None:
        told.append(size)
        packer.abort()

    packer.warm(count)
    assert sum(told) < 1 << 30
    with pytest.raises(WriteFailed):
        packer.received()
