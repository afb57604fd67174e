"""One file being packed: frames come in any order, and are written in theirs."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from blake3 import blake3

from gpuckpt.image.crew import Crew, Lane
from gpuckpt.image.frames import FRAME_SIZE, encode_entry, encode_table
from gpuckpt.image.manifest import FileEntry
from gpuckpt.image.sink import Sink
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuckpt.image.codec import Coded
    from gpuckpt.image.memory import Slot

    Parts: TypeAlias = Sequence[bytes | memoryview]

# From this size on a first frame tells that the file is a big one.
_BIG = FRAME_SIZE // 4


class Packed(Value, frozen=True):
    """One frame, packed; it may point into the slot, which is held until it is written."""

    coded: Coded
    raw: int
    slot: Slot | None


class Owner(Value, frozen=True):
    """Who packs the file, told from the threads that do it.

    `create` makes the stored file and returns it open, `give` takes a slot back, `complete`
    gets a file that is written and can be synced, `failed` hears why one cannot be.
    """

    create: Callable[[str], int]
    give: Callable[[Slot], None]
    complete: Callable[[PackedFile], None]
    failed: Callable[[Exception], None]


class PackedFile:
    """A stored file on its way to the disk; made there when its first byte is to be written."""

    def __init__(self, name: str, owner: Owner, crew: Crew) -> None:
        """Wait for frames, to be written by `crew`."""
        self.name = name
        self._owner = owner
        self._lock = threading.Lock()
        self._waiting: dict[int, Packed] = {}
        self._next = 0
        self._count: int | None = None
        self._raw_size = self._stored_size = 0
        self._entries = bytearray()
        self._table = b""
        self._writing = Lane(crew)
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
        """Take frame `number`; one without a slot is worked on in this thread, if it can be."""
        with self._lock:
            self._waiting[number] = frame
            self._advance(here=frame.slot is None)

    def end(self, count: int) -> None:
        """Know that there are `count` frames."""
        with self._lock:
            self._count = count
            self._advance(here=True)

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

    def _advance(self, *, here: bool) -> None:
        while frame := self._waiting.pop(self._next, None):
            self._next += 1
            self._raw_size += frame.raw
            coded, big = frame.coded, frame.raw >= _BIG
            size = self._pass_on(coded.parts, frame.slot, here, big=big)
            self._entries += encode_entry(size, frame.raw, coded.digest, coded.check)
        if self._next == self._count:
            self._count = None
            self._table = encode_table(self._entries)
            for start in range(0, len(self._table), FRAME_SIZE):
                self._pass_on((self._table[start : start + FRAME_SIZE],), None, here)
            self._writing.do(partial(self._guard, self._finish), here=here)

    def _pass_on(self, parts: Parts, slot: Slot | None, here: bool, *, big: bool = False) -> int:
        work = partial(self._write, parts, slot, big)
        self._writing.do(partial(self._guard, work), here=here)
        size = sum(map(len, parts))
        self._stored_size += size
        return size

    def _write(self, parts: Parts, slot: Slot | None, big: bool) -> None:
        self._open(big=big).append(parts)
        if slot:
            self._owner.give(slot)

    def _finish(self) -> None:
        self._open(big=False).end()
        self._owner.complete(self)

    def _open(self, *, big: bool) -> Sink:
        if self._sink is None:
            self._sink = Sink(self._owner.create(self.name), direct=big)
        return self._sink

    def _guard(self, work: Callable[[], None]) -> None:
        """Do it, unless something failed before; tell the owner of what fails."""
        if self._broken:
            return
        try:
            work()
        except Exception as why:  # noqa: BLE001 - a crew that dies would leave all others waiting
            self._broken = True
            self._owner.failed(why)
