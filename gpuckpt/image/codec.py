"""Turning raw bytes into zstd frames, at any level; level 0 stores them as they are.

What one byte fills is stored as such at every level, and what hardly shrinks is stored as it is.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import zstandard
from blake3 import blake3

from gpuckpt.errors import UsageError
from gpuckpt.image import plain
from gpuckpt.image.frames import FRAME_SIZE, NO_CHECK, check_of
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVELS = range(-50, 23)
_WORTH = 6  # a frame is stored as it is if it does not shrink by a 64th: it is read back quicker


class Coded(Value, frozen=True):
    """One frame: its stored bytes, which may point into the raw ones, and what its table says."""

    parts: Sequence[bytes | memoryview]
    digest: bytes
    check: bytes


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

    def frame(self, raw: memoryview) -> Coded:
        """Return one zstd frame; its pieces may point into `raw`."""
        byte = plain.run_byte(raw)
        if byte is not None:
            run = plain.run_frame(byte, len(raw))
            return Coded((run,), plain.run_digest(byte, len(raw)), NO_CHECK)
        digest = blake3(raw).digest()
        packed = self._compress(raw) if self.level else None
        if packed is None or len(packed) > len(raw) - (len(raw) >> _WORTH):
            return Coded(plain.raw_frame(raw), digest, NO_CHECK)
        return Coded((packed,), digest, check_of(packed))

    def _compress(self, raw: memoryview) -> bytes:
        try:
            compressor = self._spare.pop()
        except IndexError:
            compressor = zstandard.ZstdCompressor(level=self.level)
        packed = compressor.compress(raw)
        self._spare.append(compressor)
        return packed
