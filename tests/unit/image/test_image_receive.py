"""Receiving: when all bytes of all streams are ours, and what holds them until they are stored."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import pytest
import zstandard

from gpuckpt.errors import WriteFailed
from gpuckpt.image import disk
from gpuckpt.image.pack import Packer
from gpuckpt.image.sink import Folder
from tests.image_streams import PATIENCE, feed, start_store, threads

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
FEW_BUFFERS = 18 * MIB


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_what_is_spooled_is_received_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes nothing, and still every stream is read to its end."""
    may_write = threading.Event()

    new_file = disk.new_file

    def later(folder: int, name: str, flags: int = 0) -> int:
        may_write.wait(PATIENCE)
        return new_file(folder, name, flags)

    monkeypatch.setattr(disk, "new_file", later)
    packer = Packer(Folder(tmp_path), memory=FEW_BUFFERS, spool=100 * MIB)
    with threads() as pool:
        writer, stored = start_store(pool, packer, "pages-1.img")
        feed(writer, noise(40 * MIB))
        stored.result(PATIENCE)
        pool.submit(packer.received).result(PATIENCE)
        assert not may_write.is_set()
        may_write.set()
    (entry,) = packer.finish()
    stored = (tmp_path / "pages-1.img.zst").read_bytes()
    raw = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True).read()
    assert raw == noise(40 * MIB)
    assert entry.raw_size == 40 * MIB


def test_received_waits_for_streams_and_tells_of_failures(tmp_path: Path) -> None:
    packer = Packer(Folder(tmp_path))
    with threads() as pool:
        writer, stored = start_store(pool, packer, "a.img")
        received = pool.submit(packer.received)
        os.write(writer, b"begun")
        with pytest.raises(TimeoutError):
            received.result(0.05)
        packer.abort()
        for stopped in (received, stored):
            with pytest.raises(WriteFailed, match="stopped"):
                stopped.result(PATIENCE)
        os.close(writer)
