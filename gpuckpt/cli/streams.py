"""stdout and stderr that survive a reader who went away.

An operation that holds a job frozen must not fail because the terminal hung up or a pipe was
closed: what is told along the way is lost then, and nothing else.
"""

from __future__ import annotations

import io
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


def prepare() -> None:
    """Let both streams show any name there is: undecodable bytes become visible escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
