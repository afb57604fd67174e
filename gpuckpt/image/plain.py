"""Frames whose stored bytes follow from their raw bytes: raw blocks, and runs of one byte.

A zstd frame may hold blocks that are not compressed, and blocks that repeat one byte. Written in
one way only, such a frame needs no check of its own: what is not a raw byte of it is known
beforehand. A run costs neither hashing nor room, and raw bytes can be handed on from where they
lie in the stored frame.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from functools import lru_cache
from typing import Final

from blake3 import blake3

_MAGIC: Final = 0xFD2FB528
_SINGLE_SEGMENT_SIZE_4: Final = 0b10100000  # frame header: content size in 4 bytes, no window
_HEAD: Final = struct.Struct("<IBI")
_BLOCK: Final = 128 << 10  # the largest that RFC 8878 allows
_BLOCK_HEAD: Final = 3
_RAW, _RUN, _LAST = 0, 2, 1
_SHARED: Final = 64 << 10  # stays in a core's cache while it is copied from

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def raw_size(raw: int) -> int:
    """Return how many bytes a frame of `raw` bytes takes that are stored as they are."""
    return _HEAD.size + raw + _BLOCK_HEAD * -(-raw // _BLOCK)


def raw_frame(raw: memoryview) -> list[bytes | memoryview]:
    """Return a frame that holds these bytes as they are, in pieces that point into `raw`."""
    parts: list[bytes | memoryview] = [_head(len(raw))]
    for start in range(0, len(raw), _BLOCK):
        block = raw[start : start + _BLOCK]
        parts += (_block_head(len(block), _RAW, last=start + _BLOCK >= len(raw)), block)
    return parts


def raw_pieces(stored: memoryview, raw: int) -> list[memoryview] | None:
    """Return where `raw` bytes lie in a frame that `raw_frame` has made, None if it is no such."""
    if len(stored) != raw_size(raw) or stored[: _HEAD.size] != _head(raw):
        return None
    pieces = []
    at = _HEAD.size
    for start in range(0, raw, _BLOCK):
        size = min(_BLOCK, raw - start)
        body = at + _BLOCK_HEAD
        if stored[at:body] != _block_head(size, _RAW, last=start + _BLOCK >= raw):
            return None
        at = body + size
        pieces.append(stored[body:at])
    return pieces


@lru_cache(16)
def run_frame(byte: int, raw: int) -> bytes:
    """Return a frame of `raw` times this byte."""
    parts = [_head(raw)]
    for start in range(0, raw, _BLOCK):
        size = min(_BLOCK, raw - start)
        parts += (_block_head(size, _RUN, last=start + size >= raw), bytes([byte]))
    return b"".join(parts)


def run_of(stored: bytes | memoryview, raw: int) -> int | None:
    """Return the byte that `run_frame` has made this frame of, None if it is no such."""
    expected = len(run_frame(0, raw))
    if len(stored) != expected or stored != run_frame(stored[-1], raw):
        return None
    return stored[-1]


def run_pieces(byte: int, raw: int) -> list[memoryview]:
    """Return `raw` times this byte, in pieces of memory that many share and nobody may write to."""
    shared = _filled(byte)
    whole, rest = divmod(raw, len(shared))
    return [shared] * whole + ([shared[:rest]] if rest else [])


@lru_cache(16)
def run_digest(byte: int, raw: int) -> bytes:
    """Return the digest of `raw` times this byte."""
    return blake3(bytes([byte]) * raw).digest()


def run_byte(raw: memoryview) -> int | None:
    """Return the byte that all of these are, None if they differ; quick where they do."""
    last = len(raw) - 1
    if last < 0 or raw[0] != raw[last] or raw[0] != raw[last // 2] or raw.readonly:
        return None
    start = ctypes.addressof(ctypes.c_char.from_buffer(raw))
    return None if _memcmp(start, start + 1, last) else raw[0]


@lru_cache(4)
def _filled(byte: int) -> memoryview:
    # pages of its own: a pipe may refer to them for longer than we do
    memory = mmap.mmap(-1, _SHARED, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes([byte]) * _SHARED
    return memoryview(memory)


def _head(raw: int) -> bytes:
    return _HEAD.pack(_MAGIC, _SINGLE_SEGMENT_SIZE_4, raw)


def _block_head(size: int, kind: int, *, last: bool) -> bytes:
    return (size << 3 | kind | (_LAST if last else 0)).to_bytes(_BLOCK_HEAD, "little")
