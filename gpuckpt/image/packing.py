"""One file being packed: frames come in any order and are written in theirs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.image.frames import FRAME_SIZE, encode_entry, encode_table
from gpuckpt.image.manifest import FileEntry
from gpuckpt.image.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuckpt.image.crew import Slot, Slots

# From this size on a first frame tells that the file is a big one.
_BIG = FRAME_SIZE // 4


@dataclass(frozen=True, slots=True)
class Packed:
    """One frame, packed; `parts` may lie in the slot, which is held until they are written."""

    parts: Sequence[bytes | memoryview]
    raw: int
    digest: bytes
    slot: Slot | None


class PackedFile:
    """A stored file on its way to the disk; made there when its first byte is to be written."""

    def __init__(self, name: str, create: Callable[[], int]) -> None:
        """Wait for frames; `create` makes the file and returns it open."""
        self.name = name
        self.entry: FileEntry | None = None
        self._create = create
        self._sink: Sink | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, Packed] = {}
        self._next = 0
        self._count: int | None = None
        self._busy = False
        self._table = bytearray()
        self._raw_size = 0

    def put(self, number: int, frame: Packed) -> None:
        """Take frame `number`; somebody has to call `write` after it."""
        with self._lock:
            self._waiting[number] = frame

    def end(self, count: int) -> None:
        """Know that there are `count` frames; somebody has to call `write` after it."""
        with self._lock:
            self._count = count

    def write(self, slots: Slots) -> bool:
        """Write what is next, give its slots back; True, once, when the file is complete.

        While one thread is in here others return at once: it does their work too.
        """
        with self._lock:
            if self._busy or self.entry:
                return False
            self._busy = True
        while True:
            with self._lock:
                frame = self._waiting.pop(self._next, None)
                if frame is None:
                    self._busy = False
                    complete = self._next == self._count
                    if complete:
                        self._complete()
                    return complete
                self._next += 1
            self._write_frame(frame)
            if frame.slot:
                slots.give(frame.slot)

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

    def _write_frame(self, frame: Packed) -> None:
        sink = self._open(big=frame.raw >= _BIG)
        sink.append(frame.parts)
        self._table += encode_entry(sum(map(len, frame.parts)), frame.raw, frame.digest)
        self._raw_size += frame.raw

    def _complete(self) -> None:
        sink = self._open(big=False)
        table = encode_table(self._table)
        for start in range(0, len(table), FRAME_SIZE):
            sink.append((table[start : start + FRAME_SIZE],))
        digest = sink.end()
        self.entry = FileEntry(
            name=self.name,
            raw_size=self._raw_size,
            stored_size=sink.size,
            frames=self._next,
            stored_blake3=digest,
            table_blake3=blake3(table).hexdigest(),
        )

    def _open(self, *, big: bool) -> Sink:
        if self._sink is None:
            self._sink = Sink(self._create(), direct=big)
        return self._sink
