"""Cutting a stream into frames while it comes in.

Many streams stay open for a whole dump without a byte to read, so a stream holds no buffer
until enough has come for one, and gives a part-filled one up when others wait for buffers:
however many streams there are, whoever has bytes to read gets on.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuckpt.image.frames import FRAME_SIZE, SMALLEST_FRAME
from gpuckpt.image.pipes import IDLE, Watch
from gpuckpt.image.relay import Relay, no_relay, widen
from gpuckpt.image.traffic import At

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.buffers import Buffer, Buffers
    from gpuckpt.image.traffic import Traffic


class Intake:
    """One stream, read to its end in pieces of at most one frame."""

    def __init__(self, fd: int, stop: int, buffers: Buffers, traffic: Traffic) -> None:
        """Read from `fd`; once `stop` is readable nothing more is read."""
        self._fd = fd
        self._buffers = buffers
        self._traffic = traffic
        self._ended = False
        self._head = bytearray()
        self._watch = Watch(fd, select.POLLIN, stop)
        self._relay: Relay | None = None
        self._relayed = True

    def pieces(self) -> Iterator[tuple[memoryview, Buffer | None]]:
        """Yield the stream's bytes; a big piece lies in the buffer that comes with it.

        Raises:
            Stopped: `stop` became readable, or the buffers were stopped.
        """
        try:
            yield from self._cut()
        finally:
            if self._relay:
                self._relay.close()

    def _cut(self) -> Iterator[tuple[memoryview, Buffer | None]]:
        buffer: Buffer | None = None
        while True:
            if buffer is None:
                self._read_head()
                if self._ended:
                    if self._head:
                        yield memoryview(self._head), None
                    return
                buffer = self._buffers.take_spare(FRAME_SIZE) or self._wait_for_buffer()
                widen(self._fd)
            filled = self._fill(buffer)
            if self._ended or filled >= SMALLEST_FRAME:
                if filled:
                    yield buffer.view[:filled], buffer
                else:
                    self._buffers.give(buffer)
            else:
                self._head += buffer.view[:filled]
                self._buffers.give(buffer)
            if self._ended:
                return
            self._watch.ready()
            buffer = None if self._head else self._buffers.take_spare(FRAME_SIZE)

    def _wait_for_buffer(self) -> Buffer:
        self._traffic.move(None, At.HELD)
        try:
            return self._buffers.take(FRAME_SIZE)
        finally:
            self._traffic.move(At.HELD, None)

    def _read_head(self) -> None:
        while not self._ended and len(self._head) < SMALLEST_FRAME:
            self._watch.ready()
            with suppress(BlockingIOError):
                piece = os.read(self._fd, SMALLEST_FRAME)
                self._head += piece
                self._ended = not piece

    def _fill(self, buffer: Buffer) -> int:
        filled = len(self._head)
        buffer.view[:filled] = self._head
        self._head.clear()
        while filled < FRAME_SIZE:
            if not self._watch.ready(IDLE):
                if self._buffers.wanted:
                    break
                continue
            with suppress(BlockingIOError):
                count = self._read(buffer.view[filled:FRAME_SIZE])
                filled += count
                if not count:
                    self._ended = True
                    break
        return filled

    def _read(self, view: memoryview) -> int:
        if self._relayed:
            try:
                self._relay = self._relay or Relay()
                return self._relay.read(self._fd, view)
            except OSError as why:
                if not no_relay(why):
                    raise
                self._relayed = False
        return os.readv(self._fd, [view])
