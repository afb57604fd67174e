"""Packing: what is stored, in what memory, and how it stops."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
import zstandard
from blake3 import blake3

from gpuckpt.errors import GpuckptError, ImageDamaged, UsageError, WriteFailed
from gpuckpt.image.frames import decode_table, table_size
from gpuckpt.image.pack import Packer
from gpuckpt.image.sink import Folder
from gpuckpt.image.stage import Stage
from tests import image_places as places
from tests.image_streams import PATIENCE, eventually, feed, pack, start_store, store, threads

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from gpuckpt.image.manifest import FileEntry

KIB, MIB = 1 << 10, 1 << 20
FEW_BUFFERS = 18 * MIB


def noise(size: int) -> bytes:
    """Return bytes that do not compress, with a run of zeros in the middle."""
    return random.Random(size).randbytes(size // 2) + bytes(size - size // 2)


def feed_for_ever(fd: int) -> None:
    """Write until nobody reads any more."""
    with open(fd, "wb", buffering=0) as pipe:
        while pipe.write(noise(MIB)):
            pass


def ending(packer: Packer, stored: Future[None]) -> None:
    """Wait for the stream and for the whole: either may be the first to tell what went wrong."""
    stored.result(PATIENCE)
    packer.finish()


def unpacked(folder: Path, entry: FileEntry) -> bytes:
    """Return what any zstd program makes of a stored file, after checking what its entry says."""
    data = (folder / f"{entry.name}.zst").read_bytes()
    table = data[len(data) - table_size(entry.frames, entry.table_version) :]
    assert len(data) == entry.stored_size
    assert entry.stored_blake3 == ""
    assert blake3(table).hexdigest() == entry.table_blake3
    frames = decode_table(
        table,
        version=2,
        frames=entry.frames,
        raw_size=entry.raw_size,
        stored_size=entry.stored_size,
    )
    assert len(frames) == entry.frames
    raw = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    start = 0
    for frame in frames:
        assert blake3(raw[start : start + frame.raw]).digest() == frame.digest
        start += frame.raw
    assert start == len(raw) == entry.raw_size
    return raw


@pytest.mark.parametrize("size", [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 4 * MIB, 9 * MIB + 7])
@pytest.mark.parametrize("chunk", [4 * KIB, 5 * MIB])
def test_what_goes_in_comes_out(tmp_path: Path, size: int, chunk: int) -> None:
    (entry,) = pack(tmp_path, {"pages-1.img": noise(size)}, chunk)
    assert unpacked(tmp_path, entry) == noise(size)
    assert entry.frames == -(-size // (4 * MIB))
    assert stat.S_IMODE((tmp_path / "pages-1.img.zst").stat().st_mode) == 0o600


@pytest.mark.parametrize("level", [-7, 0, 1, 3, 12, 19])
def test_every_level_makes_files_that_zstd_reads(tmp_path: Path, level: int) -> None:
    files = {"a.img": noise(5 * MIB), "b.img": b"short", "c.img": bytes(300 * KIB)}
    for entry in pack(tmp_path, files, level=level):
        assert unpacked(tmp_path, entry) == files[entry.name]


@pytest.mark.programs
def test_the_zstd_program_gives_crius_bytes_back(tmp_path: Path) -> None:
    files = {"a.img": noise(5 * MIB), "b.img": b"", "c.img": noise(100)}
    pack(tmp_path, files, level=0)
    for name, data in files.items():
        try:
            done = subprocess.run(
                ["zstd", "-dc", str(tmp_path / f"{name}.zst")],
                check=True,
                capture_output=True,
            )
        except FileNotFoundError:
            pytest.skip("no zstd program")
        assert done.stdout == data


def test_a_file_and_a_nonblocking_pipe_are_streams_too(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(noise(6 * MIB))
    (tmp_path / "out").mkdir()
    packer = Packer(Folder(tmp_path / "out"))
    store(packer, "file.img", os.open(tmp_path / "in", os.O_RDONLY))
    with threads() as pool:
        reader, writer = os.pipe2(os.O_NONBLOCK)
        os.set_blocking(writer, True)
        stored = pool.submit(store, packer, "pipe.img", reader)
        feed(writer, noise(5 * MIB))
        stored.result(PATIENCE)
    first, second = packer.finish()
    assert unpacked(tmp_path / "out", first) == noise(6 * MIB)
    assert unpacked(tmp_path / "out", second) == noise(5 * MIB)


def test_a_stream_that_no_pages_can_be_moved_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> int:
        raise OSError(errno.EINVAL, "not so")

    monkeypatch.setattr(os, "splice", refuses)
    (entry,) = pack(tmp_path, {"a.img": noise(9 * MIB)})
    assert unpacked(tmp_path, entry) == noise(9 * MIB)


def test_bytes_are_told_as_they_come(tmp_path: Path) -> None:
    told: list[int] = []
    pack(tmp_path, {"a.img": noise(9 * MIB), "b.img": b"12345"}, on_bytes=told.append)
    assert sum(told) == 9 * MIB + 5
    assert max(told) <= 4 * MIB


def test_idle_streams_hold_no_buffers(tmp_path: Path) -> None:
    packer = Packer(Folder(tmp_path), memory=FEW_BUFFERS)
    with threads(200) as pool:
        idle = [start_store(pool, packer, f"idle-{n}.img") for n in range(100)]
        writer, stored = start_store(pool, packer, "pages-1.img")
        feed(writer, noise(20 * MIB))
        stored.result(PATIENCE)
        for writer, _ in idle:
            os.close(writer)
        for _, stored in idle:
            stored.result(PATIENCE)
    entries = packer.finish()
    assert [entry.raw_size for entry in entries] == [0] * 100 + [20 * MIB]


@pytest.mark.parametrize("size", [63 * KIB, 100 * KIB, MIB])
def test_more_begun_streams_than_buffers_do_not_lock_each_other_out(
    tmp_path: Path, size: int
) -> None:
    """Each of many streams is begun, and all of them wait while the last one is written."""
    packer = Packer(Folder(tmp_path), memory=FEW_BUFFERS)
    with threads(40) as pool:
        begun = [start_store(pool, packer, f"begun-{n}.img") for n in range(12)]
        for writer, _ in begun:
            pool.submit(os.write, writer, noise(size)[: 64 * KIB]).result(PATIENCE)
            view = memoryview(noise(size))[64 * KIB :]
            while view:
                view = view[pool.submit(os.write, writer, view).result(PATIENCE) :]
        writer, stored = start_store(pool, packer, "pages-1.img")
        pool.submit(feed, writer, noise(20 * MIB)).result(PATIENCE)
        stored.result(PATIENCE)
        for writer, stored in begun:
            feed(writer, b"tail")
            stored.result(PATIENCE)
    entries = packer.finish()
    for entry in entries[:-1]:
        assert unpacked(tmp_path, entry) == noise(size) + b"tail"
    assert unpacked(tmp_path, entries[-1]) == noise(20 * MIB)


def test_many_small_streams_at_once(tmp_path: Path) -> None:
    files = {f"core-{n}.img": noise(n * 37) for n in range(400)}
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    entries = pack(tmp_path, files)
    assert [entry.name for entry in entries] == list(files)
    for entry in entries[::40]:
        assert unpacked(tmp_path, entry) == files[entry.name]
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert not [t for t in threading.enumerate() if t.name in {"pack", "write", "sync"}]


@pytest.mark.parametrize("name", ["../a.img", "/a.img", "", "a/b", "a\0b"])
def test_a_hostile_name_spoils_the_image(tmp_path: Path, name: str) -> None:
    packer = Packer(Folder(tmp_path))
    with pytest.raises(ImageDamaged):
        store(packer, name, os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(GpuckptError):
        packer.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_name_sent_twice_spoils_the_image(tmp_path: Path) -> None:
    packer = Packer(Folder(tmp_path))
    store(packer, "a.img", os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(ImageDamaged, match="twice"):
        store(packer, "a.img", os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(GpuckptError):
        packer.finish()


def test_a_file_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.img.zst").write_text("mine")
    packer = Packer(Folder(tmp_path))
    store(packer, "a.img", os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(WriteFailed):
        packer.finish()
    assert (tmp_path / "a.img.zst").read_text() == "mine"


@pytest.mark.parametrize("level", [-51, 23])
def test_a_level_that_does_not_exist(tmp_path: Path, level: int) -> None:
    with pytest.raises(UsageError, match=f"no level {level}"):
        Packer(Folder(tmp_path), level)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="missing"):
        Packer(Folder(tmp_path / "missing"))


def test_a_stream_that_cannot_be_read(tmp_path: Path) -> None:
    packer = Packer(Folder(tmp_path))
    with pytest.raises(WriteFailed, match=r"a\.img could not be read"):
        store(packer, "a.img", os.open(tmp_path, os.O_RDONLY))
    with pytest.raises(WriteFailed):
        packer.finish()


@pytest.mark.parametrize("size", [300, 30 * MIB])
def test_a_full_disk_is_named_with_the_room_left(tmp_path: Path, size: int) -> None:
    with places.tmpfs(tmp_path / "full", "size=2m") as folder:
        (folder / "ballast").write_bytes(bytes(2 * MIB))
        packer = Packer(Folder(folder))
        with threads() as pool:
            writer, stored = start_store(pool, packer, "pages-1.img")
            fed = pool.submit(feed, writer, random.Random(1).randbytes(size))
            with pytest.raises(WriteFailed) as caught:
                ending(packer, stored)
            assert f"the disk of {folder} is full: 0.0 MiB are free" == str(caught.value)
            assert "another place" in caught.value.hint
            with pytest.raises(WriteFailed):
                packer.store("b.img", 0)
            fed.exception(PATIENCE)


def test_abort_ends_streams_that_wait_and_streams_that_run(tmp_path: Path) -> None:
    stage = Stage.create(tmp_path / "job")
    packer = Packer(stage.shelf(), memory=FEW_BUFFERS)
    with threads() as pool:
        idle = [start_store(pool, packer, f"idle-{n}.img") for n in range(5)]
        writer, running = start_store(pool, packer, "pages-1.img")
        fed = pool.submit(feed_for_ever, writer)
        finishing = pool.submit(packer.finish)
        eventually((stage.criu / "pages-1.img.zst").exists)
        packer.abort()
        packer.abort()
        for stopped in (running, finishing, *(stored for _, stored in idle)):
            with pytest.raises(WriteFailed, match="stopped"):
                stopped.result(PATIENCE)
        with pytest.raises(BrokenPipeError):
            fed.result(PATIENCE)
        for writer, _ in idle:
            os.close(writer)
    stage.discard()
    assert list(tmp_path.iterdir()) == []
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("pack")])


def test_abort_after_finish_changes_nothing(tmp_path: Path) -> None:
    packer = Packer(Folder(tmp_path))
    store(packer, "a.img", os.open("/dev/null", os.O_RDONLY))
    (entry,) = packer.finish()
    packer.abort()
    assert unpacked(tmp_path, entry) == b""
    with pytest.raises(WriteFailed, match="after the image was finished"):
        packer.store("b.img", 0)


def test_a_callback_that_fails_ends_the_packing(tmp_path: Path) -> None:
    def broken(_: int) -> None:
        raise RuntimeError("no terminal")

    packer = Packer(Folder(tmp_path), on_bytes=broken)
    with threads() as pool:
        writer, stored = start_store(pool, packer, "pages-1.img")
        fed = pool.submit(feed, writer, noise(16 * MIB))
        with pytest.raises(WriteFailed, match="no terminal"):
            ending(packer, stored)
        fed.exception(PATIENCE)
