"""Unpacking: what is handed over, what is not, and how it stops."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError, ImageDamaged, ImageError, ImageUntrusted
from gpuckpt.image import handing
from gpuckpt.image.stage import Stage
from gpuckpt.image.store import Image
from gpuckpt.image.unpack import Unpacker
from gpuckpt.image.waits import Waits
from tests import image_samples as samples
from tests.image_streams import PATIENCE, drain, eventually, pack, send, start_send, threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

KIB, MIB = 1 << 10, 1 << 20
TWO_FRAMES = 14 * MIB
SIZES = [0, 1, 64 * KIB, 64 * KIB + 1, 4 * MIB, 9 * MIB + 7]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@contextmanager
def unpacker(final: Path, files: dict[str, bytes], **options: Any) -> Iterator[Unpacker]:
    if not final.exists():
        samples.write_image(final, files)
    with Image.open(final) as image:
        feeding = Unpacker(image, **options)
        try:
            yield feeding
        finally:
            feeding.close()


def left() -> list[str]:
    """Return the threads of unpackers, also of those that other tests have closed."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("unpack")]


@pytest.mark.parametrize("chunk", [4 * KIB, MIB])
def test_what_was_stored_comes_back(tmp_path: Path, chunk: int) -> None:
    files = {f"size-{size}.img": noise(size) for size in SIZES}
    told: list[int] = []
    with unpacker(tmp_path / "job", files, on_bytes=told.append) as feeding, threads() as pool:
        for name, data in files.items():
            reader, sent = start_send(pool, feeding, name)
            assert drain(reader, chunk) == data
            sent.result(PATIENCE)
            assert feeding.has(name)
            assert feeding.read(name) == data
    assert sum(told) == sum(SIZES)


def test_small_images_are_changed_once_their_bytes_are_checked(tmp_path: Path) -> None:
    """More than a pipe holds, to a reader who may be slow; a damaged image is never changed."""
    data, told = noise(3 * MIB), list[int]()
    changes = {"files.img": lambda raw: raw[::-1], "no.img": bytes}
    options = {"on_bytes": told.append, "changes": changes}
    with unpacker(tmp_path / "job", {"files.img": data}, **options) as feeding, threads() as pool:
        reader, sent = start_send(pool, feeding, "files.img")
        assert drain(reader) == data[::-1]
        sent.result(PATIENCE)
        assert feeding.read("files.img") == data
        assert told == [len(data)]
        reader, sent = start_send(pool, feeding, "files.img")
        feeding.close()
        with pytest.raises(ImageError):
            sent.result(PATIENCE)
        os.close(reader)


def test_frames_of_every_allowed_size_come_back(tmp_path: Path) -> None:
    for frame in (64 * KIB, MIB, 16 * MIB):
        samples.write_image(tmp_path / str(frame), {"a.img": noise(17 * MIB)}, frame=frame)
        with unpacker(tmp_path / str(frame), {}) as feeding, threads() as pool:
            reader, sent = start_send(pool, feeding, "a.img")
            assert drain(reader) == noise(17 * MIB)
            sent.result(PATIENCE)


@pytest.mark.parametrize("cached", ["EAGAIN", "EOPNOTSUPP"])
@pytest.mark.parametrize("direct", ["whole", "short", "EINVAL"])
def test_what_is_not_cached_is_read_past_the_cache_or_else_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: str, direct: str
) -> None:
    real, seen = os.preadv, list[int]()

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        past = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        if not past and not flags:
            return real(fd, buffers, offset)
        seen.append(offset)
        if flags == os.RWF_NOWAIT:
            raise OSError(getattr(errno, cached), "not now")
        assert offset % 4096 == len(buffers[0]) % 4096 == 0
        if direct == "EINVAL":
            raise OSError(errno.EINVAL, "not so")
        count = real(fd, buffers, offset)
        return count if direct == "whole" else min(count, 4096)

    monkeypatch.setattr(os, "preadv", preadv)
    with unpacker(tmp_path / "job", {"a.img": noise(9 * MIB)}) as feeding:
        assert feeding.read("a.img") == noise(9 * MIB)
    assert len(seen) == 2 * 3


def test_a_file_that_cannot_be_read_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuses(path: str, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not so")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuses)
    with unpacker(tmp_path / "job", {"a.img": noise(9 * MIB)}) as feeding:
        assert feeding.read("a.img") == noise(9 * MIB)


def plain(final: Path, files: dict[str, bytes]) -> None:
    """Write an image of frames that are stored as they are, or are runs of one byte."""
    stage = Stage.create(final)
    entries = pack(stage.criu, files, level=0)
    stage.commit(samples.manifest(files=entries))
    stage.close()


MIXED = noise(13 * MIB + 5) + bytes(9 * MIB) + noise(6 * MIB + 3) + b"x" * (5 * MIB + 1)


@pytest.mark.parametrize("chunk", [1000, 4 * KIB, 100 * KIB + 1, MIB])
@pytest.mark.parametrize("memory", [TWO_FRAMES, 160 * MIB])
def test_pages_that_were_lent_stay_as_they_are_until_they_are_read(
    tmp_path: Path, chunk: int, memory: int
) -> None:
    """A reader at its ease, while frames that come later are unpacked into the same buffers."""
    plain(tmp_path / "job", {"pages-1.img": MIXED, "pages-2.img": MIXED[::-1]})
    with unpacker(tmp_path / "job", {}, memory=memory) as feeding, threads() as pool:
        readers = [start_send(pool, feeding, f"pages-{n}.img") for n in (1, 2)]
        drained = [pool.submit(drain, reader, chunk) for reader, _ in readers]
        assert drained[0].result(PATIENCE) == MIXED
        assert drained[1].result(PATIENCE) == MIXED[::-1]
        for _, sent in readers:
            sent.result(PATIENCE)


def test_what_the_pipe_still_has_outlives_the_unpacker(tmp_path: Path) -> None:
    """CRIU may read the last of it when we have gone on to other things."""
    data = MIXED[::-1]  # its last frames lie in buffers, which the other stream gets next
    plain(tmp_path / "job", {"pages-1.img": data, "pages-2.img": noise(9 * MIB)})
    with unpacker(tmp_path / "job", {}, memory=TWO_FRAMES) as feeding, threads() as pool:
        reader, sent = start_send(pool, feeding, "pages-1.img")
        got = bytearray(os.read(reader, 1))
        first = len(data) - fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) // 2
        while len(got) < first:
            got += os.read(reader, min(64 * KIB, first - len(got)))
        sent.result(PATIENCE)
        other, _ = start_send(pool, feeding, "pages-2.img")
        assert drain(other) == noise(9 * MIB)
    assert bytes(got) + drain(reader) == data


def test_only_pages_are_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU splices others on, into pipes of the job for instance, and nobody knows until when."""
    lent: list[int] = []
    real = handing.Pages.put

    def put(self: handing.Pages, rest: handing.Rest) -> None:
        lent.append(rest.left)
        real(self, rest)

    monkeypatch.setattr(handing.Pages, "put", put)
    names = ("pipes-data.img", "sk-queues.img", "ghost-file-1.img", "pages-2.img", "pages-1.img")
    files = dict.fromkeys(names, noise(5 * MIB)) | {"pages-2.img": noise(MIB)}
    with unpacker(tmp_path / "job", files) as feeding, threads() as pool:
        for name, data in files.items():
            reader, sent = start_send(pool, feeding, name)
            assert drain(reader) == data
            sent.result(PATIENCE)
            assert bool(lent) == (name == "pages-1.img")


def test_a_host_that_forbids_to_lend_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "_vmsplice", lambda *_: -1)
    with unpacker(tmp_path / "job", {"pages-1.img": noise(9 * MIB)}) as feeding, threads() as pool:
        reader, sent = start_send(pool, feeding, "pages-1.img")
        assert drain(reader) == noise(9 * MIB)
        sent.result(PATIENCE)


def test_who_waited_for_whom_is_told(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"pages-1.img": noise(9 * MIB)}) as feeding, threads() as pool:
        assert feeding.waits() == Waits()
        reader, sent = start_send(pool, feeding, "pages-1.img")
        eventually(lambda: feeding.waits().source > 0)  # the pipe is full, and nobody reads
        drain(reader)
        sent.result(PATIENCE)
        waits = feeding.waits()
    assert waits.unpacking > 0
    assert waits.reading > 0
    assert waits.unpackers >= 0 <= waits.storage


def test_an_image_is_served_again_and_again(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": noise(5 * MIB)}) as feeding, threads() as pool:
        for _ in range(3):
            reader, sent = start_send(pool, feeding, "a.img")
            assert drain(reader) == noise(5 * MIB)
            sent.result(PATIENCE)


def test_what_is_not_there(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": b""}) as feeding:
        for name in ("b.img", "../manifest.json", "", "/etc/passwd"):
            assert not feeding.has(name)
            with pytest.raises(ImageDamaged, match="holds no"):
                feeding.read(name)


def test_a_file_too_large_to_be_read_at_once(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": bytes(MIB)}) as feeding:
        assert feeding.read("a.img", limit=MIB) == bytes(MIB)
        with pytest.raises(ImageDamaged, match="too many"):
            feeding.read("a.img", limit=MIB - 1)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_nothing_of_a_bad_frame_is_handed_over(tmp_path: Path, victim: int) -> None:
    data = noise(9 * MIB)
    samples.write_image(tmp_path / "job", {"pages-1.img": data})
    place = tmp_path / "job" / "criu" / "pages-1.img.zst"
    with Image.open(tmp_path / "job") as image:
        entry = image.entries["pages-1.img"]
        source = image.open_stored(entry)
        frame = list(image.table(entry, source))[victim]
        source.close()
    stored = bytearray(place.read_bytes())
    stored[frame.offset + frame.stored // 2] ^= 1
    place.write_bytes(stored)
    with unpacker(tmp_path / "job", {}) as feeding, threads() as pool:
        reader, sent = start_send(pool, feeding, "pages-1.img")
        assert data[: victim * 4 * MIB].startswith(drain(reader))
        where = f"criu/pages-1.img.zst, frame {victim} at byte {frame.offset}: "
        with pytest.raises(ImageDamaged, match=where) as caught:
            sent.result(PATIENCE)
        assert caught.value.findings[0].object == "criu/pages-1.img.zst"
        with pytest.raises(ImageDamaged, match=where):
            feeding.read("pages-1.img")


def test_a_file_changed_since_the_image_was_opened(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": noise(100), "b.img": noise(100)}) as feeding:
        criu = tmp_path / "job" / "criu"
        os.truncate(criu / "a.img.zst", 20)
        (criu / "b.img.zst").chmod(0o666)
        with pytest.raises(ImageDamaged, match="cut short"):
            feeding.read("a.img")
        with pytest.raises(ImageUntrusted):
            feeding.read("b.img")


def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": noise(20 * MIB)}) as feeding, threads() as pool:
        reader, sent = start_send(pool, feeding, "a.img")
        os.read(reader, 100)
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            sent.result(PATIENCE)
        reader, sent = start_send(pool, feeding, "a.img")
        assert drain(reader) == noise(20 * MIB)


def test_readers_that_stand_still_do_not_lock_others_out(tmp_path: Path) -> None:
    """All streams but the last are begun and not read on until the last one is through."""
    files = {f"pages-{n}.img": noise(9 * MIB + n) for n in range(12)}
    with unpacker(tmp_path / "job", files, memory=TWO_FRAMES) as feeding, threads() as pool:
        begun = {}
        for name in list(files)[:-1]:
            reader, sent = start_send(pool, feeding, name)
            begun[name] = reader, sent, os.read(reader, 100)
        reader, sent = start_send(pool, feeding, "pages-11.img")
        assert pool.submit(drain, reader).result(PATIENCE) == files["pages-11.img"]
        sent.result(PATIENCE)
        for name, (reader, sent, first) in begun.items():
            assert first + pool.submit(drain, reader).result(PATIENCE) == files[name]
            sent.result(PATIENCE)


def test_close_ends_what_waits_and_what_runs(tmp_path: Path) -> None:
    eventually(lambda: not left())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    files = {f"pages-{n}.img": noise(9 * MIB + n) for n in range(5)}
    with unpacker(tmp_path / "job", files, memory=TWO_FRAMES) as feeding, threads() as pool:
        begun = [start_send(pool, feeding, name) for name in files]
        os.read(begun[0][0], 100)
        feeding.close()
        feeding.close()
        for reader, sent in begun:
            with pytest.raises(ImageError, match="stopped"):
                sent.result(PATIENCE)
            os.close(reader)
        with pytest.raises(ImageError, match="stopped"):
            feeding.read("pages-1.img")
    eventually(lambda: not left())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_pipes_are_made_wide_for_big_files_only(tmp_path: Path) -> None:
    files = {"big.img": noise(2 * MIB), "small.img": noise(100)}
    with unpacker(tmp_path / "job", files) as feeding, threads() as pool:
        for name, size in (("big.img", MIB), ("small.img", 64 * KIB)):
            reader, sent = start_send(pool, feeding, name)
            os.read(reader, 10)
            assert fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) == size
            drain(reader)
            sent.result(PATIENCE)


def test_a_file_is_a_stream_too(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": noise(5 * MIB)}) as feeding:
        send(feeding, "a.img", os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT, 0o600))
    assert (tmp_path / "out").read_bytes() == noise(5 * MIB)


def test_a_callback_that_fails_ends_the_stream_only(tmp_path: Path) -> None:
    def broken(_: int) -> None:
        raise RuntimeError("no terminal")

    with unpacker(tmp_path / "job", {"a.img": noise(100)}, on_bytes=broken) as feeding:
        with pytest.raises(RuntimeError, match="no terminal"):
            send(feeding, "a.img", os.open("/dev/null", os.O_WRONLY))
        assert feeding.read("a.img") == noise(100)


def test_errors_are_ours(tmp_path: Path) -> None:
    with unpacker(tmp_path / "job", {"a.img": noise(100)}) as feeding:
        (tmp_path / "job" / "criu" / "a.img.zst").unlink()
        with pytest.raises(GpuckptError) as caught:
            feeding.read("a.img")
        assert caught.value.exit_code == 7
