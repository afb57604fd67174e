"""Protobuf and CRIU's framing read from bytes: just enough to look into images.

Images come from disk and may be damaged or forged: whatever the bytes, the outcome is a value or
ImageDamaged, and nothing is allocated by a number that was read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import ImageDamaged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_IMAGE: Final = 0x54564319  # IMG_COMMON_MAGIC, since CRIU 2.0
_SERVICE: Final = 0x55105940  # IMG_SERVICE_MAGIC, of what a restore does not need
_LONGEST_VARINT: Final = 70  # bits that ten bytes carry
_WORD: Final = 0xFFFFFFFF
_HEAD: Final = 8  # the two words that say what an image is
_BYTES: Final = 2  # the wire type of anything with a length


class Message:
    """The fields of one protobuf message, by number, each with all its values."""

    def __init__(self, raw: bytes) -> None:
        """Read all fields; those nobody asks for do no harm."""
        self._values: dict[int, list[int | bytes]] = {}
        for number, value, _ in _fields(raw):
            self._values.setdefault(number, []).append(value)

    def number(self, field: int, default: int = 0) -> int:
        """Return the last value of an integer field."""
        found = self.optional(field)
        return default if found is None else found

    def optional(self, field: int) -> int | None:
        """Return the last value of an integer field, None if it is not there."""
        values = self._values.get(field)
        if not values:
            return None
        if isinstance(values[-1], bytes):
            raise ImageDamaged(f"field {field} holds bytes where a number belongs")
        return values[-1]

    def numbers(self, field: int) -> tuple[int, ...]:
        """Return all values of a repeated integer field, packed or not."""
        found: list[int] = []
        for value in self._values.get(field, ()):
            found += _packed(value) if isinstance(value, bytes) else [value]
        return tuple(found)

    def bytes(self, field: int) -> tuple[bytes, ...]:
        """Return all values of a string, bytes or message field."""
        values = self._values.get(field, [])
        found = tuple(value for value in values if isinstance(value, bytes))
        if len(found) != len(values):
            raise ImageDamaged(f"field {field} holds a number where bytes belong")
        return found

    def text(self, field: int) -> str:
        """Return the last value of a string field, "" if it is not there.

        Paths are bytes: what is not UTF-8 comes as in os.fsdecode, so that it leads back to them.
        """
        found = self.bytes(field)
        return found[-1].decode("utf-8", "surrogateescape") if found else ""

    def message(self, field: int) -> Message | None:
        """Return the last value of a message field, None if it is not there."""
        found = self.bytes(field)
        return Message(found[-1]) if found else None

    def messages(self, field: int) -> tuple[Message, ...]:
        """Return all values of a repeated message field."""
        return tuple(Message(one) for one in self.bytes(field))


def records(raw: bytes, magic: int, name: str, *, service: bool = False) -> Iterator[Message]:
    """Go through the records of an image, or a service file, of the kind that `magic` stands for.

    Raises:
        ImageDamaged: the bytes are no such image, or end in the middle of a record.
    """
    head = _SERVICE if service else _IMAGE
    return (Message(raw[one]) for one in _records(raw, magic, name, head))


Change = Callable[[bytes], bytes]


def rewritten(
    raw: bytes, magic: int, name: str, changes: Mapping[tuple[int, ...], Change]
) -> bytes:
    """Return an image with other bytes in some fields, longer or shorter; the rest stays.

    The key of a change is the numbers that lead to its field, message by message.

    Raises:
        ImageDamaged: the bytes are no such image, or end in the middle of a record.
    """
    parts = [raw[:_HEAD]]
    for one in _records(raw, magic, name):
        body = _rebuilt(raw[one], changes)
        parts += (len(body).to_bytes(4, "little"), body)
    return b"".join(parts)


def _rebuilt(raw: bytes, changes: Mapping[tuple[int, ...], Change]) -> bytes:
    parts: list[bytes] = []
    begin = 0
    for number, value, end in _fields(raw):
        mine = {path[1:]: change for path, change in changes.items() if path[0] == number}
        field = raw[begin:end]
        if mine and isinstance(value, bytes):
            whole = mine.get(())
            new = whole(value) if whole is not None else _rebuilt(value, mine)
            if new != value:
                field = _number(number << 3 | _BYTES) + _number(len(new)) + new
        parts.append(field)
        begin = end
    return b"".join(parts)


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _records(raw: bytes, magic: int, name: str, head: int = _IMAGE) -> Iterator[slice]:
    if (_word(raw, 0, name), _word(raw, 4, name)) != (head, magic):
        raise ImageDamaged(f"{name} does not begin as such an image does")
    at = _HEAD
    while at < len(raw):
        size = _word(raw, at, name)
        at += 4
        if size > len(raw) - at:
            raise ImageDamaged(f"{name} ends in the middle of a record")
        yield slice(at, at + size)
        at += size


def _word(raw: bytes, at: int, name: str) -> int:
    if len(raw) < at + 4:
        raise ImageDamaged(f"{name} ends in the middle of a record")
    return int.from_bytes(raw[at : at + 4], "little")


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes, int]]:
    """Give each field's number, its value, and where the field ends."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield number, value, at
            continue
        if kind in {1, 5}:
            size = 8 if kind == 1 else 4
        elif kind == _BYTES:
            size, at = _varint(raw, at)
        else:
            raise ImageDamaged(f"a record holds a field of the unknown kind {kind}")
        if size > len(raw) - at:
            raise ImageDamaged("a record ends in the middle of a field")
        chunk = raw[at : at + size]
        at += size
        yield number, chunk if kind == _BYTES else int.from_bytes(chunk, "little"), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends. Images hold hundreds of thousands, most of them short."""
    if at < len(raw) and raw[at] < 0x80:  # noqa: PLR2004 - the bit that says more will follow
        return raw[at], at + 1
    value = 0
    for shift in range(0, _LONGEST_VARINT, 7):
        if at >= len(raw):
            raise ImageDamaged("a record ends in the middle of a number")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says more will follow
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ImageDamaged("a record holds a number of more than ten bytes")


def _packed(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        value, at = _varint(raw, at)
        yield value


def little_words(words: tuple[int, ...]) -> bytes:
    """Return the bytes that CRIU cut into little-endian words of four."""
    return b"".join(struct.pack("<I", word & _WORD) for word in words)
