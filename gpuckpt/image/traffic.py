"""Frames on their way through a packer, counted: who waits for whom, and for how long.

Every frame comes by here five times, 800 frames a second at 3 GB/s, so a step is a few additions
under one lock.
"""

from __future__ import annotations

import threading
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable

# Two processors, weights at level 1: by the clock a frame took 1.7 times what it took of one, as
# CRIU, a reader and a writer want them too; stored as it is, 1.1 times.
_CROWDED: Final = 1.3
_FORGET: Final = 0.8


class At(IntEnum):
    """Where a frame is; HELD is one that CRIU has for us while there is no buffer for it."""

    HELD = 0
    TO_PACK = 1
    PACKING = 2
    IN_LINE = 3  # packed, and one before it is not
    TO_WRITE = 4
    WRITING = 5


class Load(Value, frozen=True):
    """What there is to do right now, in frames; `idle` packers have none.

    `pressed`: there is hardly a buffer left, so that CRIU waits or is about to. `crowded`: packers
    wait for a processor, and so does CRIU then.
    """

    to_pack: int
    to_write: int
    idle: int
    pressed: bool
    crowded: bool = False


class PackWaits(Value, frozen=True):
    """Who waited for whom, in seconds.

    `source`: nothing was there to be done, CRIU had not sent it. `packers`, `storage`: CRIU waited
    for a buffer, and most of those waited to be packed, or to be written; of where as many waited,
    most were at work. `sync`: all was written, and not yet on the disk. `packing`, `writing`: at
    work, all threads together.
    """

    source: float = 0.0
    packers: float = 0.0
    storage: float = 0.0
    sync: float = 0.0
    packing: float = 0.0
    writing: float = 0.0


class Traffic:
    """The counters. Every method may be called from any thread."""

    def __init__(self, packers: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to count, for so many packers."""
        self._packers = packers
        self._clock = clock
        self._lock = threading.Lock()
        self._frames = [0] * len(At)
        self._since = clock()
        self._source = self._for_packers = self._for_storage = 0.0
        self._packing = self._writing = 0.0
        self._passed = self._worked = 0.0

    def move(self, leaves: At | None, enters: At | None) -> None:
        """Know that one frame left a place, or came, or went on."""
        with self._lock:
            self._count()
            if leaves is not None:
                self._frames[leaves] -= 1
            if enters is not None:
                self._frames[enters] += 1

    def worked(self, passed: float, processor: float) -> None:
        """Know what a frame took to pack, by the clock and of a processor."""
        with self._lock:
            self._passed = self._passed * _FORGET + passed
            self._worked = self._worked * _FORGET + processor

    def load(self, *, pressed: bool) -> Load:
        """Return what there is to do."""
        frames = self._frames
        return Load(
            to_pack=frames[At.TO_PACK],
            to_write=frames[At.TO_WRITE],
            idle=self._packers - frames[At.PACKING],
            pressed=pressed,
            crowded=self._passed > self._worked * _CROWDED,
        )

    def waits(self, sync: float = 0.0) -> PackWaits:
        """Return the seconds so far."""
        with self._lock:
            self._count()
            return PackWaits(
                source=self._source,
                packers=self._for_packers,
                storage=self._for_storage,
                sync=sync,
                packing=self._packing,
                writing=self._writing,
            )

    def _count(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        held, to_pack, packing, _, to_write, writing = self._frames
        # with few buffers nothing queues up: then those at work are what CRIU waits for
        if held and (to_pack, packing) > (to_write, writing):
            self._for_packers += passed
        elif held:
            self._for_storage += passed
        elif not (to_pack or packing or to_write or writing):
            self._source += passed
        self._packing += passed * packing
        self._writing += passed * writing
