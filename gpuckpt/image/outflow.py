"""Feeding one stream: frames are unpacked ahead while earlier ones are written.

A reader may stop reading for as long as it likes, for instance until another task has been
given its own image. So a stream whose reader stands still lets go of what it has unpacked as
soon as others wait for memory, and unpacks it again later: nobody is locked out.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gpuckpt.image.buffers import room_for
from gpuckpt.image.frames import SMALLEST_FRAME, Frame
from gpuckpt.image.handing import Copies, Rest, way_into
from gpuckpt.image.memory import Stopped
from gpuckpt.image.pipes import IDLE, Room, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.image.buffers import Buffer, Buffers
    from gpuckpt.image.crew import Crew
    from gpuckpt.image.reading import StoredFile, Unpacked
    from gpuckpt.image.waits import Clock


def pour(raw: bytes, fd: int, stop: int) -> None:
    """Write bytes that are in hand to `fd`, which is made non-blocking.

    Raises:
        BrokenPipeError: the reader went away.
        Stopped: `stop` became readable.
    """
    os.set_blocking(fd, False)
    watch = Watch(fd, select.POLLOUT, stop)
    view = memoryview(raw)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            watch.ready()


class _Ahead:
    """One frame that is being unpacked into its buffer."""

    __slots__ = ("_done", "_outcome", "buffer", "frame")

    def __init__(self, frame: Frame, buffer: Buffer) -> None:
        self.frame = frame
        self.buffer = buffer
        self._outcome: Unpacked | BaseException | None = None
        self._done = threading.Event()

    def unpack(self, file: StoredFile) -> None:
        """Do the work; what goes wrong is kept for `result`."""
        try:
            self._outcome = file.unpack(self.frame, self.buffer.view)
        except BaseException as why:  # noqa: BLE001 - raised again where it is waited for
            self._outcome = why
        self._done.set()

    def result(self) -> Unpacked:
        """Wait for the frame's bytes."""
        self._done.wait()
        if not isinstance(self._outcome, tuple):
            raise self._outcome or Stopped
        return self._outcome

    def forget(self) -> None:
        """Wait for the work to end and let go of its result."""
        self._done.wait()
        self._outcome = None


class Outflow:
    """One stream of an image, written to its end."""

    def __init__(
        self,
        file: StoredFile,
        fd: int,
        stop: int,
        on_bytes: Callable[[int], None],
        clock: Clock,
        *,
        is_read: bool,
    ) -> None:
        """Write to `fd`, which is made non-blocking; once `stop` is readable, stop.

        `is_read`: whoever has the other end of the pipe reads from it, and never splices.
        """
        self._file = file
        self._fd = fd
        self._stop = stop
        self._on_bytes = on_bytes
        self._clock = clock
        self._frames = iter(file.table)
        self._later: deque[Frame] = deque()
        self._window: deque[_Ahead] = deque()
        self._written = 0  # bytes of the first frame in the window
        self._room = Room(fd, stop)
        os.set_blocking(fd, False)
        small = file.entry.raw_size <= SMALLEST_FRAME
        self._way = Copies(fd) if small else way_into(fd, file.entry.raw_size, is_read=is_read)

    def run(self, crew: Crew, buffers: Buffers, ahead: int) -> None:
        """Write everything, with up to `ahead` frames unpacked in advance.

        Raises:
            Damaged: a frame is not as it was stored.
            BrokenPipeError: the reader went away.
            Stopped: `stop` became readable, or the buffers were stopped.
        """
        try:
            if self._file.entry.raw_size <= SMALLEST_FRAME:
                self._run_small()
            else:
                self._run(crew, buffers, ahead)
        finally:
            self._let_go(buffers)
            self._room.close()

    def _run_small(self) -> None:
        for frame in self._frames:
            self._write(Rest((memoryview(bytearray(self._file.raw(frame))),)), None)
            self._on_bytes(frame.raw)

    def _run(self, crew: Crew, buffers: Buffers, ahead: int) -> None:
        while self._top_up(crew, buffers, ahead):
            first = self._window[0]
            begun = time.perf_counter()
            unpacked = first.result()
            self._clock.unpacked(begun, unpacked)
            rest = Rest(unpacked.pieces)
            rest.advance(self._written)
            if not self._write(rest, buffers):
                self._written = first.frame.raw - rest.left
                self._let_go(buffers)
                Watch(self._fd, select.POLLOUT, self._stop).ready()
                continue
            self._window.popleft()
            self._written = 0
            if unpacked.used:
                self._way.done(first.buffer, buffers)
            else:
                buffers.give(first.buffer)
            self._on_bytes(first.frame.raw)

    def _top_up(self, crew: Crew, buffers: Buffers, ahead: int) -> bool:
        while len(self._window) < ahead:
            frame = self._later.popleft() if self._later else next(self._frames, None)
            if frame is None:
                break
            buffer = buffers.take_spare(room_for(frame.raw))
            if buffer is None and not self._window:
                self._way.let_go(buffers)  # who waits must hold nothing that others wait for
                buffer = buffers.take(room_for(frame.raw))
            if buffer is None:
                self._later.appendleft(frame)
                break
            item = _Ahead(frame, buffer)
            self._window.append(item)
            crew.do(partial(item.unpack, self._file))
        return bool(self._window)

    def _write(self, rest: Rest, buffers: Buffers | None) -> bool:
        """Write the rest of a frame; False if others need its memory and the reader stands."""
        while True:
            with suppress(BlockingIOError):
                self._way.put(rest)
            if not rest.left:
                return True
            # the pipe is full: to try again before the reader is done with it would be to spin
            begun = time.perf_counter()
            ready = self._room.ready(IDLE)
            self._clock.waited(begun)
            if not ready and buffers and buffers.wanted:
                return False

    def _let_go(self, buffers: Buffers) -> None:
        frames = [item.frame for item in self._window]
        for place, item in enumerate(self._window):
            item.forget()
            if place:
                buffers.give(item.buffer)
            else:  # some of it may have been handed over
                self._way.give_up(item.buffer, buffers)
        self._window.clear()
        self._way.let_go(buffers)
        self._later.extendleft(reversed(frames))
