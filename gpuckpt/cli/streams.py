"""stdout and stderr that survive a reader who went away.

An operation that holds a job frozen must not fail because the terminal hung up or a pipe was
closed: what is told along the way is lost then, and nothing else.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO


class Sink(Protocol):
    """What lines can be written to."""

    def write(self, text: str, /) -> int:
        """Write some text."""

    def flush(self) -> None:
        """Let it out."""


class Tolerant(io.TextIOBase):
    """A text stream over another that keeps the first write error instead of raising it."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream` until it breaks."""
        super().__init__()
        self._stream = stream
        self.broken: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        with suppress(ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the descriptor below."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Return True: this is what it is for."""
        return True

    def write(self, text: str) -> int:
        """Write, or remember why it could not be."""
        if self.broken is None:
            try:
                self._stream.write(text)
            except OSError as why:
                self.broken = why
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, or remember why it could not be."""
        if self.broken is None:
            try:
                self._stream.flush()
            except OSError as why:
                self.broken = why

    def close(self) -> None:
        """Leave the stream below open: it is not ours, and may be gone when we are collected."""


def prepare() -> None:
    """Let both streams show any name there is: undecodable bytes become visible escapes.

    A standard descriptor that the caller closed leads to /dev/null from here on: otherwise the
    next file opened, an image's perhaps, would take its number and our text.
    """
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
        os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = _over(1)
    if sys.stderr is None:
        sys.stderr = _over(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _over(number: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8")


def leave() -> None:
    """Let go of both streams; what could not be written by now is lost, and was told.

    Python flushes them once more at its end, and a failure there would replace the exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except ValueError:
            continue  # closed by the caller
