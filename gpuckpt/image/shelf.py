"""Where the stored files of an image go: a folder of this host, or a store elsewhere.

A packer knows only what stands here; what a disk wants and what a store wants is told by who
makes the shelf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuckpt.errors import GpuckptError


class Piece(Value, frozen=True):
    """Bytes with a place in the file: an offset, or a number of its parts."""

    parts: Sequence[bytes | memoryview]
    offset: int
    size: int


class Sink(Protocol):
    """One stored file being written."""

    def append(self, parts: Sequence[bytes | memoryview]) -> Piece | None:
        """Put `parts`, at most one frame, after what is there; what is to be written now.

        One thread at a time, and it must write that piece before it appends another.
        """

    def write(self, piece: Piece) -> None:
        """Write a piece. Any thread, at any time before `end`."""

    def end(self) -> None:
        """Write what is left; nothing is appended any more."""

    def sync(self) -> None:
        """Return once every byte is safe."""

    def close(self) -> None:
        """Let go of the file, complete or not."""


class Shelf(Protocol):
    """A place for stored files.

    `writers` threads are worth having at once, and need `memory` bytes for themselves. `aside`:
    who reads must not write, be a file as small as it may.
    """

    writers: int
    memory: int
    aside: bool

    def create(self, name: str, *, big: bool) -> Sink:
        """Make the stored file of the CRIU image `name`, which is new."""

    def sync(self) -> None:
        """Return once the place itself knows all its files for good."""

    def error(self, why: Exception) -> GpuckptError:
        """Return what to say of an error that `create`, `sync` or a sink has raised."""

    def stop(self) -> None:
        """Begin nothing any more where that takes long; sinks may raise Stopped from now on."""

    def close(self) -> None:
        """Let go of the place; what is there stays."""
