"""Turning raw bytes into zstd frames, at any level; level 0 stores them as they are.

What one byte fills is stored as such at every level, and what hardly shrinks is stored as it is.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import zstandard
from blake3 import blake3

from gpuckpt.errors import UsageError
from gpuckpt.image import plain
from gpuckpt.image.frames import FRAME_SIZE, NO_CHECK, check_of
from gpuckpt.image.pace import LADDER
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVELS = range(-50, 23)
_WORTH = 6  # a frame is stored as it is if it does not shrink by a 64th: it is read back quicker
# The look: pieces from all over the frame, at no even distance. On frames of 4 MiB it takes 2 % of
# what level 1 takes for weights, and saves 1.2 ms for random bytes.
_PIECES: Final = 8
_PIECE: Final = 8 << 10
_WORTH_A_LOOK: Final = 1 << 20
_GOLDEN: Final = 0.6180339887
_MOST_SPARE: Final = 32


class Coded(Value, frozen=True):
    """One frame: its stored bytes, which may point into the raw ones, and what its table says."""

    parts: Sequence[bytes | memoryview]
    digest: bytes
    check: bytes


class Codec:
    """Compresses frames, in as many threads as like to at the same time."""

    def __init__(self, level: int | None) -> None:
        """Take a zstd level: 1 to 22, down to -50 for speed, 0 to store bytes as they are.

        None: every frame comes with a level of its own.

        Raises:
            UsageError: there is no such level.
        """
        if level is not None and level not in LEVELS:
            raise UsageError(f"there is no level {level}, only {LEVELS.start} to {LEVELS.stop - 1}")
        self.level = level
        # One compressor works for one thread at a time; a deque is a lock-free shelf for them.
        levels = LADDER if level is None else (level,)
        self._spare = {level: deque[zstandard.ZstdCompressor]() for level in levels}

    @property
    def memory(self) -> int:
        """How many bytes each compressing thread needs for itself."""
        highest = max(self._spare)
        if highest == 0:
            return 0
        parameters = zstandard.ZstdCompressionParameters.from_level(highest, source_size=FRAME_SIZE)
        return parameters.estimated_compression_context_size()

    def frame(self, raw: memoryview, level: int | None = None) -> Coded:
        """Return one zstd frame; its pieces may point into `raw`.

        With a `level` of its own, bytes that do not look like shrinking are stored as they are.
        """
        byte = plain.run_byte(raw)
        if byte is not None:
            run = plain.run_frame(byte, len(raw))
            return Coded((run,), plain.run_digest(byte, len(raw)), NO_CHECK)
        digest = blake3(raw).digest()
        packed = self._packed(raw, level)
        if packed is None or not _shrunk(len(packed), len(raw)):
            return Coded(plain.raw_frame(raw), digest, NO_CHECK)
        return Coded((packed,), digest, check_of(packed))

    def _packed(self, raw: memoryview, own: int | None) -> bytes | None:
        level = self.level if own is None else own
        if not level:
            return None
        spare = self._spare[level]
        try:
            compressor = spare.pop()
        except IndexError:
            compressor = zstandard.ZstdCompressor(level=level)
        dull = own is not None and _looks_dull(raw, compressor)
        packed = None if dull else compressor.compress(raw)
        if sum(map(len, self._spare.values())) < _MOST_SPARE:
            spare.append(compressor)
        return packed


def _looks_dull(raw: memoryview, compressor: zstandard.ZstdCompressor) -> bool:
    if len(raw) < _WORTH_A_LOOK:
        return False
    room = len(raw) - _PIECE
    starts = (int((number * _GOLDEN) % 1 * room) for number in range(_PIECES))
    sample = b"".join(raw[start : start + _PIECE] for start in starts)
    return not _shrunk(len(compressor.compress(sample)), len(sample))


def _shrunk(packed: int, raw: int) -> bool:
    return packed <= raw - (raw >> _WORTH)
