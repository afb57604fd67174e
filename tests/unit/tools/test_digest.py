"""Digests of files outside of an image."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from gpuckpt.tools.digest import PIECE, PIECES, SMALL, digest

if TYPE_CHECKING:
    from pathlib import Path


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for raw in (b"", b"bytes", bytes(SMALL)):
        path.write_bytes(raw)
        found = digest(str(path), full=False)
        assert (found.hex, found.sampled) == (blake3(raw).hexdigest(), False)
        assert (found.size, found.mtime_ns) == (len(raw), path.stat().st_mtime_ns)


def test_of_a_large_one_samples_are_read_unless_all_is_asked_for(tmp_path: Path) -> None:
    raw = os.urandom(SMALL + 12345)
    path = tmp_path / "weights"
    path.write_bytes(raw)
    starts = [number * (len(raw) - PIECE) // (PIECES - 1) for number in range(PIECES)]
    samples = b"".join(raw[at : at + PIECE] for at in starts)
    sampled = digest(str(path), full=False)
    assert sampled.sampled
    assert sampled.hex == blake3(len(raw).to_bytes(8, "little") + samples).hexdigest()
    assert digest(str(path), full=True).hex == blake3(raw).hexdigest()


@pytest.mark.parametrize("at", [0, SMALL + 100], ids=["first", "last"])
def test_the_first_and_the_last_bytes_count(tmp_path: Path, at: int) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(SMALL + 101))
    before = digest(str(path), full=False)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    assert digest(str(path), full=False).hex != before.hex


def test_what_is_no_regular_file_has_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("nowhere")
    for name in (".", "fifo", "link"):
        with pytest.raises(OSError, match=r"No such file|no regular file"):
            digest(str(tmp_path / name), full=False)
