"""One file being packed: frames come in any order, and get their places in theirs."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from blake3 import blake3
from msgspec import structs

from gpuckpt.image.buffers import copy
from gpuckpt.image.frames import FRAME_SIZE, encode_entry, encode_table
from gpuckpt.image.manifest import FileEntry
from gpuckpt.image.traffic import At
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuckpt.image.buffers import Buffer
    from gpuckpt.image.codec import Coded
    from gpuckpt.image.crew import Crew
    from gpuckpt.image.shelf import Sink
    from gpuckpt.image.traffic import Traffic

    Parts: TypeAlias = Sequence[bytes | memoryview]

# From this size on a first frame tells that the file is a big one.
_BIG = FRAME_SIZE // 4
_WORTH_A_COPY = 4 << 10


class Packed(Value, frozen=True):
    """One frame, packed; it may lie in the buffer, which is held until it is written."""

    coded: Coded
    raw: int
    buffer: Buffer | None


class Owner(Value, frozen=True):
    """Who packs the file, told from the threads that do it.

    `create` makes the stored file, told whether it is a big one, `give` takes a buffer back,
    `complete` gets a file that is written and can be synced, `failed` hears why one cannot be. The
    `writers` write it, `aside` even what is small, and `traffic` knows.
    """

    create: Callable[[str, bool], Sink]
    give: Callable[[Buffer], None]
    complete: Callable[[PackedFile], None]
    failed: Callable[[Exception], None]
    writers: Crew
    traffic: Traffic
    aside: bool = False


class PackedFile:
    """A stored file on its way to the disk; made there when its first byte is to be written.

    Frames get their places in order, and are written side by side once they have them.
    """

    def __init__(self, name: str, owner: Owner) -> None:
        """Wait for frames."""
        self.name = name
        self._owner = owner
        self._lock = threading.Lock()
        self._waiting: dict[int, Packed] = {}
        self._next = 0
        self._count: int | None = None
        self._raw_size = self._stored_size = 0
        self._entries = bytearray()
        self._table = b""
        self._appending = threading.Lock()
        self._in_line: deque[tuple[Parts, Buffer | None]] = deque()
        self._unwritten = 0
        self._big = False
        self._sink: Sink | None = None
        self._broken = False

    @property
    def entry(self) -> FileEntry:
        """What the manifest says of the complete file."""
        return FileEntry(
            name=self.name,
            raw_size=self._raw_size,
            stored_size=self._stored_size,
            frames=self._next,
            table_blake3=blake3(self._table).hexdigest(),
        )

    def put(self, number: int, frame: Packed) -> None:
        """Take frame `number`; one without a buffer is written in this thread, if it can be."""
        with self._lock:
            self._waiting[number] = frame
            count, alone = self._advance()
        self._write(count, here=alone and frame.buffer is None)

    def end(self, count: int) -> None:
        """Know that there are `count` frames."""
        with self._lock:
            self._count = count
            count, alone = self._advance()
        self._write(count, here=alone)

    def sync(self) -> None:
        """Bring the complete file to the disk and close it."""
        if self._sink:
            self._sink.sync()
        self.close()

    def close(self) -> None:
        """Let go of the file, complete or not."""
        sink, self._sink = self._sink, None
        if sink:
            sink.close()

    def _advance(self) -> tuple[int, bool]:
        """Line up what can be written; return how much that is, and whether there is no more."""
        before = self._unwritten
        while frame := self._waiting.pop(self._next, None):
            self._big = self._big or (self._next == 0 and frame.raw >= _BIG)
            self._next += 1
            self._raw_size += frame.raw
            coded = frame.coded
            size = self._line_up(coded.parts, frame.buffer)
            self._entries += encode_entry(size, frame.raw, coded.digest, coded.check)
        if self._next == self._count and not self._table:
            self._table = encode_table(self._entries)
            for start in range(0, len(self._table), FRAME_SIZE):
                self._line_up((self._table[start : start + FRAME_SIZE],), None)
        return self._unwritten - before, before == 0

    def _line_up(self, parts: Parts, buffer: Buffer | None) -> int:
        if buffer:
            self._owner.traffic.move(At.IN_LINE, At.TO_WRITE)
        size = sum(map(len, parts))
        self._stored_size += size
        self._unwritten += 1
        self._in_line.append((parts, buffer))
        return size

    def _write(self, count: int, *, here: bool) -> None:
        for _ in range(count):
            if here and not self._owner.aside:
                self._write_next()
            else:
                self._owner.writers.do(self._write_next)

    def _write_next(self) -> None:
        """Write what is next in line, unless something failed before."""
        if self._broken:
            return
        try:
            self._append_next()
            with self._lock:
                self._unwritten -= 1
                complete = self._table and not self._unwritten
            if complete:
                self._opened().end()
                self._owner.complete(self)
        except Exception as why:  # noqa: BLE001 - a crew that dies would leave all others waiting
            self._broken = True
            self._owner.failed(why)

    def _append_next(self) -> None:
        traffic = self._owner.traffic
        with self._appending:
            parts, buffer = self._in_line.popleft()
            sink = self._opened()
            if buffer:
                traffic.move(At.TO_WRITE, At.WRITING)
            piece = sink.append(parts)
        if piece:
            sink.write(piece)
        if buffer:
            traffic.move(At.WRITING, None)
            self._owner.give(buffer)

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._owner.create(self.name, self._big)
        return self._sink


def kept_in(buffer: Buffer, coded: Coded) -> Coded:
    """Let a packed frame take the place of its raw bytes; one of raw bytes has it already."""
    (part, *more) = coded.parts
    if more or len(part) < _WORTH_A_COPY:
        return coded
    copy(buffer.view, part)
    return structs.replace(coded, parts=(buffer.view[: len(part)],))
