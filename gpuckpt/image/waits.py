"""Who waited for whom while an image was handed over: for receipts, not for decisions."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.image.reading import Unpacked


class Waits(Value, frozen=True):
    """Seconds, those of all streams and threads together.

    `source`: a stream had bytes and waited for CRIU to take earlier ones. `unpackers`, `storage`:
    CRIU had taken all there was, and the next frame was still being unpacked or waited to be; or
    still being read. `unpacking`, `reading`: threads were at work on it.
    """

    source: float = 0.0
    unpackers: float = 0.0
    storage: float = 0.0
    unpacking: float = 0.0
    reading: float = 0.0


class Clock:
    """Adds up what the streams of one unpacker say."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(Waits.__struct_fields__, 0.0)

    @property
    def waits(self) -> Waits:
        """What there was up to now."""
        with self._lock:
            return Waits(**self._seconds)

    def waited(self, begun: float) -> None:
        """A stream waited for CRIU from `begun` to now."""
        self._add(source=time.perf_counter() - begun)

    def unpacked(self, begun: float, frame: Unpacked) -> None:
        """A stream asked for a frame at `begun`, and has it now."""
        missing = max(0.0, frame.ended - begun)
        unread = min(missing, max(0.0, frame.read - begun))
        self._add(
            unpackers=missing - unread,
            storage=unread,
            unpacking=frame.ended - frame.read,
            reading=frame.read - frame.begun,
        )

    def _add(self, **more: float) -> None:
        with self._lock:
            for name, seconds in more.items():
                self._seconds[name] += seconds
