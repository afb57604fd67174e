"""An image in a folder of a store.

A store has no owners and modes that would say who wrote an object: whoever may write the bucket,
or the folder of the host, decides what a restore runs. What is read is compared with its digests
all the same, before anyone sees it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, Protocol

from gpuckpt.errors import ImageDamaged, NotAnImage
from gpuckpt.image import names, sealed
from gpuckpt.image.ahead import BLOCK, Ahead
from gpuckpt.image.damage import Damaged, stored_damage, wrong_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.location import Location

# what a dump and a copy put there first
_CLAIMS: Final = (names.UPLOAD_CLAIM, names.COPY_CLAIM)
_SMALL_IN_ALL: Final = 16  # blocks


class Folder(Protocol):
    """What is needed of a folder of a store; tools/remote.py has it."""

    def names(self) -> dict[str, int]:
        """Return the size of every object below, by their names relative to the folder."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return so many bytes of an object, fewer only at its end.

        Raises:
            FileNotFoundError: there is no such object.
            StoreFailed: the store did not give them.
        """

    def close(self) -> None:
        """Let go of connections."""


class DistantOrigin:
    """See Origin."""

    def __init__(
        self,
        folder: Folder,
        place: Location,
        block: int = BLOCK,
        *,
        owned: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask for nothing yet; `folder`, which is at `place`, is closed with this if `owned`.

        It is read in blocks of so many bytes; `check` is called by who waits, and may raise.
        """
        self._place = place
        self._owned = owned
        self._folder = folder
        self._block = block
        self._ahead = Ahead(folder.read, block, check=check)
        self._sizes: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._begun = False
        self._closed = False

    def manifest(self) -> bytes:
        """See Origin."""
        url = self._place
        self._sizes = self._folder.names()
        size = self._sizes.get(names.MANIFEST)
        if not self._sizes:
            raise NotAnImage(f"there is nothing at {url}")
        if size is None and any(one.startswith(_CLAIMS) for one in self._sizes):
            raise NotAnImage(f"{url} is an image that was never finished")
        if size is None:
            raise NotAnImage(f"{url} is no image: it has no {names.MANIFEST}")
        if size > sealed.LARGEST_MANIFEST:
            raise ImageDamaged(f"{url}/{names.MANIFEST} has {size} bytes: too many for a manifest")
        try:
            return self._folder.read(names.MANIFEST, 0, size)
        except FileNotFoundError as why:
            raise NotAnImage(f"{url} was removed meanwhile") from why

    def expect(self, entries: Collection[FileEntry]) -> None:
        """See Origin."""
        self._sizes = self._sizes or self._folder.names()
        self._known = {key_of(entry): entry.stored_size for entry in entries}

    def open(self, entry: FileEntry) -> DistantFile:
        """See Origin."""
        size = self._sizes.get(key_of(entry))
        if size is None:
            raise Damaged(stored_damage(entry, "it is missing"))
        if size != entry.stored_size:
            raise Damaged(wrong_size(entry, size))
        if not self._begun:
            self._begun = True
            self._ask_for_small()
        return DistantFile(self._ahead, key_of(entry), size)

    def strays(self) -> Iterator[str]:
        """See Origin; logs may be anything."""
        for name in sorted(self._sizes):
            known = name in self._known or name in {names.MANIFEST, names.OWNER}
            if not (known or name.startswith(f"{names.LOGS_DIR}/")):
                yield name

    def close(self) -> None:
        """See Origin."""
        if not self._closed:
            self._closed = True
            self._ahead.close()
            if self._owned:
                self._folder.close()

    def _ask_for_small(self) -> None:
        """Whoever opens one file opens them all, one after the other, and most are small."""
        room = _SMALL_IN_ALL * self._block
        for name, size in sorted(self._known.items(), key=lambda one: one[1]):
            room -= min(size, self._block)
            if room < 0:
                return
            if self._sizes.get(name) == size:
                self._ahead.expect(name, size)


class DistantFile:
    """See Source."""

    def __init__(self, ahead: Ahead, name: str, size: int) -> None:
        """Read the object `name` of this size."""
        self._ahead = ahead
        self._name = name
        self._size = size

    def read(self, start: int, size: int, room: memoryview) -> memoryview:
        """See Source."""
        at = 0
        for piece in self._pieces(start, size):
            room[at : at + len(piece)] = piece
            at += len(piece)
        return room[:at]

    def tail(self, size: int) -> bytes:
        """See Source."""
        return b"".join(self._pieces(self._size - size, size))

    def close(self) -> None:
        """See Source."""

    def _pieces(self, start: int, size: int) -> list[memoryview]:
        try:
            return self._ahead.get(self._name, self._size, start, size)
        except FileNotFoundError as why:
            raise OSError(errno.ENOENT, "it was removed meanwhile") from why


def key_of(entry: FileEntry) -> str:
    """Return the name of a stored file's object below the folder."""
    return f"{names.CRIU_DIR}/{names.stored_name(entry.name)}"
