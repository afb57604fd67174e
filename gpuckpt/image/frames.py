"""The bytes of one stored file: zstd frames, and the table of them at the end.

A stored file is a row of independent zstd frames, followed by one zstd skippable frame that
holds the frame table. Any zstd program skips the table and gives back CRIU's bytes; with the
table every frame can be found, unpacked and checked alone. FORMAT.md has the layout.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import zstandard
from blake3 import blake3

from gpuckpt.image import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FRAME_SIZE = 4 << 20
MAX_FRAME = 16 << 20
SMALLEST_FRAME = 64 << 10
LARGEST_TABLE = 128 << 20
TABLE_VERSION = 2
NO_CHECK = bytes(16)  # of a frame whose stored bytes follow from its raw ones (see plain)

_SKIPPABLE = 0x184D2A5E
_MAGIC = b"gpckptFT"
_HEAD = struct.Struct("<II8sII")  # skippable magic, payload size; then magic, version, count
# stored bytes, raw bytes, BLAKE3 of the raw bytes; since version 2 a check of the stored bytes
_ENTRIES = {1: struct.Struct("<II32s"), 2: struct.Struct("<II32s16s")}
_UNFRAMED = 8


class TableDamaged(Exception):
    """A frame table that does not say what it should; the message says what is wrong."""


class FrameDamaged(Exception):
    """A frame that does not hold the bytes it should; the message says what is wrong."""


class Frame(NamedTuple):
    """One frame: where it lies in the stored file, and what it unpacks to."""

    number: int
    offset: int
    stored: int
    raw: int
    digest: bytes
    check: bytes = NO_CHECK


class FrameTable:
    """The frames of one stored file, in order; offsets are derived, so none can overlap."""

    __slots__ = ("_entries", "_entry", "data", "version")

    def __init__(self, data: bytes, version: int) -> None:
        """Take the whole skippable frame."""
        self.data = data
        self.version = version
        self._entry = _ENTRIES[version]
        self._entries = memoryview(data)[_HEAD.size :]

    def __len__(self) -> int:
        """Return how many frames there are."""
        return len(self._entries) // self._entry.size

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames from the start of the file to its end."""
        offset = 0
        entries = self._entry.iter_unpack(self._entries)
        for number, (stored, raw, *digests) in enumerate(entries):
            yield Frame(number, offset, stored, raw, *digests)
            offset += stored


def table_size(frames: int, version: int) -> int:
    """Return how many bytes at the end of a stored file its table takes."""
    return _HEAD.size + frames * _ENTRIES[version].size


def possible(frames: int, raw: int, stored: int, version: int) -> bool:
    """Whether so many frames can hold `raw` bytes in a stored file of this size."""
    table = table_size(frames, version)
    least = (frames - 1) * SMALLEST_FRAME if frames else -1
    return least < raw <= frames * MAX_FRAME and table <= LARGEST_TABLE and stored >= table + frames


def largest_stored(raw: int) -> int:
    """Return the most bytes that a frame of `raw` bytes may take."""
    return raw + (raw >> 8) + 1024


def check_of(stored: bytes | memoryview) -> bytes:
    """Return the check of the stored bytes of a frame that was compressed."""
    return blake3(stored).digest(length=len(NO_CHECK))


def encode_entry(stored: int, raw: int, digest: bytes, check: bytes) -> bytes:
    """Return one frame's entry of the table."""
    return _ENTRIES[TABLE_VERSION].pack(stored, raw, digest, check)


def encode_table(entries: bytes | bytearray) -> bytes:
    """Return the skippable frame that ends a stored file, from its packed entries."""
    count, rest = divmod(len(entries), _ENTRIES[TABLE_VERSION].size)
    whole = table_size(count, TABLE_VERSION)
    if rest or whole > LARGEST_TABLE:
        raise ValueError(f"a table cannot have {len(entries)} bytes of entries")
    head = _HEAD.pack(_SKIPPABLE, whole - _UNFRAMED, _MAGIC, TABLE_VERSION, count)
    return head + bytes(entries)


def decode_table(
    data: bytes, *, version: int, frames: int, raw_size: int, stored_size: int
) -> FrameTable:
    """Return the table in `data`, once it agrees with what the manifest says of the file.

    Raises:
        TableDamaged: it is no table, or its lengths do not add up to those given.
    """
    size = table_size(frames, version)
    if len(data) != size:
        raise TableDamaged(f"its frame table has {len(data)} bytes instead of {size}")
    head = _HEAD.unpack_from(data)
    if head != (_SKIPPABLE, size - _UNFRAMED, _MAGIC, version, frames):
        raise TableDamaged("its frame table does not begin as one")
    table = FrameTable(data, version)
    raw_sum = stored_sum = 0
    for frame in table:
        _check_lengths(frame, last=frame.number == frames - 1)
        raw_sum += frame.raw
        stored_sum += frame.stored
    if raw_sum != raw_size:
        raise TableDamaged(f"its frames hold {raw_sum} bytes instead of {raw_size}")
    if stored_sum + size != stored_size:
        raise TableDamaged(f"its frames take {stored_sum} bytes instead of {stored_size - size}")
    return table


def prove_frame(
    unpacker: zstandard.ZstdDecompressor, frame: Frame, stored: memoryview, room: memoryview
) -> Sequence[memoryview]:
    """Return the raw bytes of one frame, proved to be those that were packed.

    They lie in `stored`, in memory that many share, or in `room`, into which a compressed frame is
    unpacked; nothing is allocated, and sizes that the frame itself claims are compared with the
    table's first.

    Raises:
        FrameDamaged: it is no zstd frame of this size, or its bytes have another digest.
    """
    if len(stored) != frame.stored:
        raise FrameDamaged(f"only {len(stored)} of its {frame.stored} bytes are there")
    pieces: Sequence[memoryview] | None = plain.raw_pieces(stored, frame.raw)
    if pieces is None:
        byte = plain.run_of(stored, frame.raw)
        if byte is not None:
            _compare(frame, plain.run_digest(byte, frame.raw))
            return plain.run_pieces(byte, frame.raw)
        pieces = (_unpack(unpacker, frame, stored, room),)
    digest = blake3()
    for piece in pieces:
        digest.update(piece)
    _compare(frame, digest.digest())
    return pieces


def check_stored(frame: Frame, stored: bytes | memoryview) -> None:
    """Look whether the stored bytes of a frame are those that were written, each of them.

    The digest of the raw bytes does not tell: zstd has many ways to store the same bytes.

    Raises:
        FrameDamaged: they are not.
    """
    if frame.check == NO_CHECK:
        view = memoryview(stored)
        run, pieces = plain.run_of(view, frame.raw), plain.raw_pieces(view, frame.raw)
        same = run is not None or pieces is not None
    else:
        same = check_of(stored) == frame.check
    if not same:
        raise FrameDamaged("its stored bytes are not those that were written")


def new_unpacker() -> zstandard.ZstdDecompressor:
    """Return a decompressor that takes frames of this format only; not for two threads."""
    return zstandard.ZstdDecompressor(max_window_size=MAX_FRAME)


def _check_lengths(frame: Frame, *, last: bool) -> None:
    smallest = 1 if last else SMALLEST_FRAME
    if not smallest <= frame.raw <= MAX_FRAME:
        raise TableDamaged(f"frame {frame.number} claims {frame.raw} raw bytes")
    if not 1 <= frame.stored <= largest_stored(frame.raw):
        raise TableDamaged(f"frame {frame.number} claims {frame.stored} stored bytes")


def _unpack(
    unpacker: zstandard.ZstdDecompressor, frame: Frame, stored: memoryview, room: memoryview
) -> memoryview:
    try:
        claim = zstandard.get_frame_parameters(stored)
        if claim.content_size != frame.raw or claim.window_size > MAX_FRAME:
            raise FrameDamaged("its head claims another size")
        # all of it at once goes without a copy inside zstd, as quick as decompress()
        count = unpacker.stream_reader(stored).readinto(room[: frame.raw])
    except zstandard.ZstdError as why:
        raise FrameDamaged(f"it cannot be unpacked ({why})") from why
    if count != frame.raw:
        raise FrameDamaged(f"it cannot be unpacked (only {count} of {frame.raw} bytes came)")
    return room[:count]


def _compare(frame: Frame, digest: bytes) -> None:
    if digest != frame.digest:
        raise FrameDamaged("its bytes do not have the digest they were stored with")
