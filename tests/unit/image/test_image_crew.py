"""What packing and unpacking are made of: crews, buffers, and sinks past the cache."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gpuckpt.image import disk
from gpuckpt.image.buffers import Buffer, Buffers, room_for
from gpuckpt.image.crew import Crew
from gpuckpt.image.handing import Pages, Rest
from gpuckpt.image.memory import Stopped
from gpuckpt.image.sink import FileSink
from tests.image_streams import PATIENCE, drain, eventually, threads

if TYPE_CHECKING:
    from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
USUAL = room_for(4 * MIB)
PARTS = [random.Random(n).randbytes(size) for n, size in enumerate((3 * MIB, 5, 4095, MIB + 1, 0))]


@pytest.fixture
def crew() -> Crew:
    return Crew("test-crew", 4)


def test_a_crew_does_what_it_was_given_before_it_ends(crew: Crew) -> None:
    done: list[int] = []
    for number in range(200):
        crew.do(partial(done.append, number))
    crew.dismiss()
    assert sorted(done) == list(range(200))
    assert not [thread for thread in threading.enumerate() if thread.name == "test-crew"]


def test_nobody_overtakes_who_waits_for_a_buffer() -> None:
    buffers = Buffers(2 * USUAL)
    first, second = buffers.take(1), buffers.take_spare(USUAL)
    assert second
    assert not buffers.take_spare(1)
    with threads(2) as pool:
        waiting = pool.submit(buffers.take, USUAL)
        eventually(lambda: buffers.wanted)
        assert not buffers.take_spare(1)
        buffers.give(second)
        assert waiting.result(PATIENCE) is second
        waiting = pool.submit(buffers.take, 3)
        eventually(lambda: buffers.wanted)
        buffers.stop()
        with pytest.raises(Stopped):
            waiting.result(PATIENCE)
    buffers.give(first)
    with pytest.raises(Stopped):
        buffers.take_spare(1)


def test_the_hottest_buffer_comes_first_and_small_ones_make_room_for_larger() -> None:
    buffers = Buffers(3 * USUAL)
    first, second = buffers.take(1), buffers.take(1)
    buffers.give(first)
    buffers.give(second)
    assert buffers.take(1) is second
    larger = buffers.take_spare(2 * USUAL)
    assert larger
    assert larger.size == 2 * USUAL
    assert not buffers.take_spare(1)  # the first one had to go
    buffers.give(larger)
    assert buffers.take(1) is larger


def test_one_buffer_larger_than_all_passes_alone() -> None:
    buffers = Buffers(1)
    whole = buffers.take(room_for(16 * MIB))
    assert not buffers.take_spare(1)
    buffers.give(whole)
    assert buffers.take(1) is whole


def test_a_buffer_that_was_renewed_leaves_its_pages_to_the_pipe() -> None:
    buffer = Buffer(USUAL)
    buffer.view[: 64 * KIB] = bytes([1]) * (64 * KIB)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ways = Pages(writer, 64 * KIB)
    ways.put(Rest((buffer.view[: 32 * KIB], buffer.view[32 * KIB : 64 * KIB])))
    buffer.renew()
    buffer.view[: 64 * KIB] = bytes([2]) * (64 * KIB)
    os.close(writer)
    assert drain(reader) == bytes([1]) * (64 * KIB)


def fill(folder: Path, *, direct: bool) -> bytes:
    parent = os.open(folder, disk.FOLDER_FLAGS)
    sink = FileSink(disk.new_file(parent, "out"), direct=direct)
    for number in range(0, len(PARTS), 2):
        piece = sink.append(PARTS[number : number + 2])
        if piece:
            sink.write(piece)
    sink.end()
    sink.sync()
    sink.close()
    os.close(parent)
    return (folder / "out").read_bytes()


@pytest.mark.parametrize("direct", [True, False])
def test_a_sink_writes_parts_of_any_length(tmp_path: Path, direct: bool) -> None:
    assert fill(tmp_path, direct=direct) == b"".join(PARTS)


@pytest.mark.parametrize("after", [0, 1])
def test_a_filesystem_that_takes_the_flag_and_refuses_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    refused: list[int] = []
    real = os.pwritev

    def pwritev(fd: int, parts: list[bytes], offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT and offset >= after:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    assert fill(tmp_path, direct=True) == b"".join(PARTS)
    assert len(refused) <= 1


def test_another_error_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwritev(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(OSError, match="Input/output"):
        fill(tmp_path, direct=True)


@pytest.mark.parametrize("direct", [True, False])
def test_a_short_write_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    real, whole = os.pwrite, os.pwritev

    def pwritev(fd: int, parts: list[bytes], offset: int) -> int:
        first = parts[0][: 4096 * 5]
        return whole(fd, [first, *(parts[1:] if len(first) == len(parts[0]) else [])], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:4096], offset))
    assert fill(tmp_path, direct=direct) == b"".join(PARTS)


def test_small_parts_of_a_big_file_are_written_together(
    tmp_path: Path,
) -> None:
    parent = os.open(tmp_path, disk.FOLDER_FLAGS)
    sink = FileSink(disk.new_file(parent, "out"), direct=True)
    pieces = [sink.append((bytes([number]) * 1000,)) for number in range(250)]
    assert [piece for piece in pieces if piece] == []
    sink.end()
    sink.close()
    os.close(parent)
    assert (tmp_path / "out").read_bytes() == b"".join(bytes([n]) * 1000 for n in range(250))
