"""Feeding one stream: frames are unpacked ahead while earlier ones are written.

A reader may stop reading for as long as it likes, for instance until another task has been
given its own image. So a stream whose reader stands still lets go of what it has unpacked as
soon as others wait for memory, and unpacks it again later: nobody is locked out.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from gpuckpt.image.frames import SMALLEST_FRAME, Frame
from gpuckpt.image.pipes import IDLE, Watch
from gpuckpt.image.relay import Relay, no_relay, widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.image.crew import Crew
    from gpuckpt.image.memory import Budget
    from gpuckpt.image.reading import StoredFile


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
    """One frame that is being unpacked."""

    __slots__ = ("_done", "_error", "_raw", "frame")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._raw = b""
        self._error: BaseException | None = None
        self._done = threading.Event()

    def unpack(self, file: StoredFile) -> None:
        """Do the work; what goes wrong is kept for `result`."""
        try:
            self._raw = file.raw(self.frame)
        except BaseException as why:  # noqa: BLE001 - raised again where it is waited for
            self._error = why
        self._done.set()

    def result(self) -> bytes:
        """Wait for the frame's bytes."""
        self._done.wait()
        if self._error:
            raise self._error
        return self._raw

    def forget(self) -> None:
        """Wait for the work to end and let go of its result."""
        self._done.wait()
        self._raw = b""


class Outflow:
    """One stream of an image, written to its end."""

    def __init__(
        self, file: StoredFile, fd: int, stop: int, on_bytes: Callable[[int], None]
    ) -> None:
        """Write to `fd`, which is made non-blocking; once `stop` is readable, stop."""
        self._file = file
        self._fd = fd
        self._on_bytes = on_bytes
        self._watch = Watch(fd, select.POLLOUT, stop)
        self._frames = iter(file.table)
        self._later: deque[Frame] = deque()
        self._window: deque[_Ahead] = deque()
        self._written = 0  # bytes of the first frame in the window
        self._relay: Relay | None = None
        os.set_blocking(fd, False)

    def run(self, crew: Crew, budget: Budget, ahead: int) -> None:
        """Write everything, with up to `ahead` frames unpacked in advance.

        Raises:
            Damaged: a frame is not as it was stored.
            BrokenPipeError: the reader went away.
            Stopped: `stop` became readable, or the budget was stopped.
        """
        if self._file.entry.raw_size <= SMALLEST_FRAME:
            self._run_small()
            return
        widen(self._fd)
        try:
            self._open_relay()
            while self._top_up(crew, budget, ahead):
                first = self._window[0]
                if self._write(first.result(), budget):
                    self._window.popleft()
                    self._written = 0
                    budget.give(first.frame.raw)
                    self._on_bytes(first.frame.raw)
                else:
                    self._let_go(budget)
                    self._watch.ready()
            self._flush()
        finally:
            self._let_go(budget)
            self._close_relay()

    def _run_small(self) -> None:
        for frame in self._frames:
            self._write(self._file.raw(frame), None)
            self._on_bytes(frame.raw)

    def _top_up(self, crew: Crew, budget: Budget, ahead: int) -> bool:
        while len(self._window) < ahead:
            frame = self._later.popleft() if self._later else next(self._frames, None)
            if frame is None:
                break
            if not self._window:
                budget.take(frame.raw)
            elif not budget.take_spare(frame.raw):
                self._later.appendleft(frame)
                break
            item = _Ahead(frame)
            self._window.append(item)
            crew.do(partial(item.unpack, self._file))
        return bool(self._window)

    def _write(self, raw: bytes, budget: Budget | None) -> bool:
        """Write the rest of a frame; False if others need its memory and the reader stands."""
        view = memoryview(raw)
        while self._written < len(view):
            try:
                self._move(view[self._written :])
            except BlockingIOError:
                if not self._watch.ready(IDLE) and budget and budget.wanted:
                    return False
        return True

    def _move(self, view: memoryview) -> None:
        if self._relay is None:
            self._written += os.write(self._fd, view)
            return
        self._written += self._relay.put(view)
        try:
            self._relay.push(self._fd)
        except OSError as why:
            if not no_relay(why):
                raise
            self._written -= self._relay.held  # this is the first push of all
            self._close_relay()

    def _flush(self) -> None:
        while self._relay and self._relay.held:
            try:
                self._relay.push(self._fd)
            except BlockingIOError:
                self._watch.ready()

    def _open_relay(self) -> None:
        try:
            self._relay = Relay()
        except OSError as why:
            if not no_relay(why):
                raise

    def _close_relay(self) -> None:
        if self._relay:
            self._relay.close()
            self._relay = None

    def _let_go(self, budget: Budget) -> None:
        frames = [item.frame for item in self._window]
        while self._window:
            item = self._window.popleft()
            item.forget()
            budget.give(item.frame.raw)
        self._later.extendleft(reversed(frames))
