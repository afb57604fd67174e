"""Giving CRIU its images back: unpacked ahead on all cores, checked before they are handed over.

Each stream is fed by the thread that calls `send`. A frame whose digest is wrong ends the
stream before any byte of it has left this process.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuckpt.errors import ImageDamaged, ImageError
from gpuckpt.image.buffers import Buffers, room_for
from gpuckpt.image.crew import Crew, cores
from gpuckpt.image.damage import Damaged, refusal
from gpuckpt.image.frames import FRAME_SIZE
from gpuckpt.image.memory import Stopped
from gpuckpt.image.outflow import Outflow, pour
from gpuckpt.image.reading import StoredFile
from gpuckpt.image.waits import Clock, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuckpt.image.store import Image

MEMORY = 160 << 20
SMALL = 64 << 20
_PAGES = "pages-"


class Unpacker:
    """Feeds streams from one image. Every method may be called from any thread."""

    def __init__(
        self,
        image: Image,
        on_bytes: Callable[[int], None] = lambda _: None,
        workers: int | None = None,
        memory: int = MEMORY,
        changes: Mapping[str, Callable[[bytes], bytes]] | None = None,
    ) -> None:
        """Work on the open `image`; `on_bytes` is told of raw bytes as they are handed over.

        `memory` bounds all buffers together. `changes` has what is done to small images, by their
        names, between the check of their bytes and handing them over.
        """
        self._image = image
        self._on_bytes = on_bytes
        each = room_for(FRAME_SIZE)
        # more than cores: what is not in the page cache is waited for
        self._workers = min(workers or cores() + 2, max(1, memory // 3 // each))
        self._buffers = Buffers(memory - self._workers * each)
        self._crew = Crew("unpack", self._workers)
        self._changes = changes or {}
        self._clock = Clock()
        self._changed = threading.Condition()
        self._sending = 0
        self._closed = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def has(self, name: str) -> bool:
        """Whether the image holds CRIU's `name`."""
        return name in self._image.entries

    def send(self, name: str, fd: int) -> None:
        """Write CRIU's `name` into `fd` to its end; `fd` stays open and becomes non-blocking.

        Call it in a thread of its own for every stream.

        Raises:
            ImageDamaged: it is not in the image, or not as it was stored; no byte of the damaged
                frame, or of what comes after it, was handed over.
            ImageUntrusted: others could have written it.
            BrokenPipeError: the reader went away; it may simply have had enough.
            ImageError: `close` was called.
        """
        with self._opened(name) as file:
            if change := self._changes.get(name):
                pour(change(self._whole(file, SMALL)), fd, self._stop)
                self._on_bytes(file.entry.raw_size)
                return
            is_read = name.startswith(_PAGES)
            flow = Outflow(file, fd, self._stop, self._on_bytes, self._clock, is_read=is_read)
            flow.run(self._crew, self._buffers, self._workers + 2)

    def read(self, name: str, limit: int = SMALL) -> bytes:
        """Return CRIU's `name`, one that is known to be small.

        Raises:
            ImageDamaged: it is not in the image, not as it was stored, or larger than `limit`.
            ImageUntrusted: others could have written it.
            ImageError: `close` was called.
        """
        with self._opened(name) as file:
            return self._whole(file, limit)

    def _whole(self, file: StoredFile, limit: int) -> bytes:
        if (size := file.entry.raw_size) > limit:
            name = file.entry.name
            raise ImageDamaged(f"{name} has {size} bytes in {self._image.path}: too many")
        return b"".join(file.raw(frame) for frame in file.table)

    def waits(self) -> Waits:
        """Return who waited for whom up to now."""
        return self._clock.waits

    def close(self) -> None:
        """End every `send` soon; all calls to come raise."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self._buffers.stop()
        os.eventfd_write(self._stop, 1)
        # Not waited for: a disk that hangs must not keep a failed restore from being undone.
        threading.Thread(target=self._release, name="unpack-release", daemon=True).start()

    @contextmanager
    def _opened(self, name: str) -> Iterator[StoredFile]:
        entry = self._image.entries.get(name)
        if entry is None:
            raise ImageDamaged(f"the image {self._image.path} holds no {name}")
        with self._changed:
            if self._closed:
                raise ImageError("reading the image was stopped")
            self._sending += 1
        try:
            file = StoredFile(self._image, entry)
            try:
                yield file
            finally:
                file.close()
        except Stopped as why:
            raise ImageError("reading the image was stopped") from why
        except Damaged as why:
            raise refusal(self._image.path, [why.damage]) from why
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()

    def _release(self) -> None:
        with self._changed:
            while self._sending:
                self._changed.wait()
        self._crew.dismiss()
        os.close(self._stop)
