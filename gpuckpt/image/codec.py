"""Turning raw bytes into zstd frames, at any level; level 0 stores them as they are."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

import zstandard

from gpuckpt.errors import UsageError
from gpuckpt.image.frames import FRAME_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVELS = range(-50, 23)
_MAGIC = 0xFD2FB528
_SINGLE_SEGMENT_SIZE_4 = 0b10100000  # frame header: content size in 4 bytes, no window field
_BLOCK = 128 << 10
_LAST = 1


class Codec:
    """Compresses frames, in as many threads as like to at the same time."""

    def __init__(self, level: int) -> None:
        """Take a zstd level: 1 to 22, down to -50 for speed, 0 to store bytes as they are.

        Raises:
            UsageError: there is no such level.
        """
        if level not in LEVELS:
            raise UsageError(f"there is no level {level}, only {LEVELS.start} to {LEVELS.stop - 1}")
        self.level = level
        # One compressor works for one thread at a time; a deque is a lock-free shelf for them.
        self._spare: deque[zstandard.ZstdCompressor] = deque()

    @property
    def memory(self) -> int:
        """How many bytes each compressing thread needs for itself."""
        if self.level == 0:
            return 0
        parameters = zstandard.ZstdCompressionParameters.from_level(
            self.level, source_size=FRAME_SIZE
        )
        return parameters.estimated_compression_context_size()

    def frame(self, raw: memoryview) -> Sequence[bytes | memoryview]:
        """Return one zstd frame in pieces; they may point into `raw`."""
        if self.level == 0:
            return _plain_frame(raw)
        try:
            compressor = self._spare.pop()
        except IndexError:
            compressor = zstandard.ZstdCompressor(level=self.level)
        packed = compressor.compress(raw)
        self._spare.append(compressor)
        return (packed,)


def _plain_frame(raw: memoryview) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = [
        struct.pack("<IBI", _MAGIC, _SINGLE_SEGMENT_SIZE_4, len(raw))
    ]
    for start in range(0, len(raw), _BLOCK):
        block = raw[start : start + _BLOCK]
        last = _LAST if start + _BLOCK >= len(raw) else 0
        parts.append((len(block) << 3 | last).to_bytes(3, "little"))
        parts.append(block)
    return parts
