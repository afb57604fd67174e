"""Plain frames: written in one way only, read by any zstd, and nothing else passes for one."""

from __future__ import annotations

import random

import pytest
import zstandard
from blake3 import blake3

from gpuckpt.image import plain
from gpuckpt.image.codec import Codec
from gpuckpt.image.frames import (
    FRAME_SIZE,
    NO_CHECK,
    Frame,
    FrameDamaged,
    check_of,
    check_stored,
)

BLOCK = 128 << 10
SIZES = (1, 2, 255, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, FRAME_SIZE)


def noise(size: int) -> bytearray:
    """Return bytes that do not compress, in memory that can be written as a buffer's can."""
    return bytearray(random.Random(size).randbytes(size))


def unzstd(stored: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)


@pytest.mark.parametrize("size", SIZES)
def test_raw_bytes_are_found_where_they_lie(size: int) -> None:
    raw = noise(size)
    stored = b"".join(plain.raw_frame(memoryview(raw)))
    assert len(stored) == plain.raw_size(size)
    assert unzstd(stored) == raw
    pieces = plain.raw_pieces(memoryview(stored), size)
    assert pieces is not None
    assert b"".join(pieces) == raw


@pytest.mark.parametrize("size", SIZES)
def test_a_run_takes_no_room(size: int) -> None:
    stored = plain.run_frame(7, size)
    assert unzstd(stored) == bytes([7]) * size
    assert len(stored) <= 9 + 4 * -(-size // BLOCK)
    assert plain.run_of(stored, size) == 7
    assert plain.run_digest(7, size) == blake3(bytes([7]) * size).digest()
    assert plain.run_byte(memoryview(bytearray([7]) * size)) == 7


def test_one_other_byte_anywhere_is_no_run() -> None:
    for place in (0, 1, 4095, 4096, FRAME_SIZE // 2, FRAME_SIZE - 2, FRAME_SIZE - 1):
        raw = bytearray(FRAME_SIZE)
        raw[place] = 1
        assert plain.run_byte(memoryview(raw)) is None


@pytest.mark.parametrize("kind", ["raw", "run"])
def test_every_bit_outside_of_the_raw_bytes_is_known(kind: str) -> None:
    size = 2 * BLOCK + 5
    raw = noise(size) if kind == "raw" else bytearray(size)
    coded = Codec(0).frame(memoryview(raw))
    stored = bytearray(b"".join(coded.parts))
    frame = Frame(0, 0, len(stored), size, coded.digest, coded.check)
    assert coded.check == NO_CHECK
    check_stored(frame, stored)
    heads = [*range(9), *range(9, 12), *range(9 + 3 + BLOCK, 9 + 6 + BLOCK)]
    for place in heads if kind == "raw" else range(len(stored)):
        for bit in range(8):
            stored[place] ^= 1 << bit
            with pytest.raises(FrameDamaged):
                check_stored(frame, stored)
            stored[place] ^= 1 << bit


@pytest.mark.parametrize("level", [-5, 0, 1, 3])
def test_every_level_stores_what_does_not_shrink_as_it_is(level: int) -> None:
    codec = Codec(level)
    raw = noise(BLOCK)
    assert b"".join(codec.frame(memoryview(raw)).parts) == b"".join(
        plain.raw_frame(memoryview(raw))
    )
    assert codec.frame(memoryview(bytearray(BLOCK))).parts == (plain.run_frame(0, BLOCK),)


def test_what_was_compressed_has_a_check_of_its_stored_bytes() -> None:
    coded = Codec(1).frame(memoryview(bytearray(b"text " * 10_000)))
    (stored,) = coded.parts
    assert coded.check == check_of(stored) != NO_CHECK
    frame = Frame(0, 0, len(stored), 50_000, coded.digest, coded.check)
    check_stored(frame, stored)
    for place in range(len(stored)):
        damaged = bytearray(stored)
        damaged[place] ^= 1
        with pytest.raises(FrameDamaged):
            check_stored(frame, bytes(damaged))
