"""Where an image lies, as its reader sees it: a folder of this host or one of a store.

`local` and `distant` are the two kinds; nothing else of this room knows which one it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpuckpt.image.manifest import FileEntry


class Source(Protocol):
    """The bytes of one stored file, open; may be read from several threads."""

    def read(self, start: int, size: int, room: memoryview) -> memoryview:
        """Read into `room`, and return where the bytes are: fewer if there are no more.

        `room` may be needed up to the block after the last byte.

        Raises:
            OSError: they cannot be read.
            StoreFailed: the store did not give them.
        """

    def tail(self, size: int) -> bytes:
        """Return the last bytes of the file; raises as `read` does."""

    def close(self) -> None:
        """Let go of the file; nobody may read from it any more."""


class Origin(Protocol):
    """The files of one image."""

    def manifest(self) -> bytes:
        """Return the bytes of manifest.json; the first thing asked for.

        Raises:
            NotAnImage: there is none.
            NotPrivileged, ImageUntrusted, ImageDamaged, StoreFailed: it cannot be used.
        """

    def expect(self, entries: Collection[FileEntry]) -> None:
        """Know which stored files there should be, once the manifest is read.

        Raises:
            ImageDamaged: there is no place for them.
            ImageUntrusted: others could have written that place.
        """

    def open(self, entry: FileEntry) -> Source:
        """Open a stored file, if its size is the one recorded.

        Raises:
            Damaged: it is missing, no regular file, or has another size.
            ImageUntrusted: others could have written it.
        """

    def strays(self) -> Iterator[str]:
        """Yield the names of what lies there and does not belong to the image."""

    def close(self) -> None:
        """Let go of it all; closing twice is fine."""
