"""Where a copy of an image arrives: a folder of this host or of a store, whole or not there.

A copy that is cut short leaves what has arrived, so that the same copy can go on with it. On this
host that is a stage, named after the image's id, which `gpuckpt gc` knows as such; in a store it
is the folder itself, without a manifest.json and with a claim that says what is being copied.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from blake3 import blake3

from gpuckpt.errors import GpuckptError, ImageExists
from gpuckpt.image import names
from gpuckpt.image.remotestage import claims

if TYPE_CHECKING:
    from gpuckpt.location import Location, Url

PART: Final = 16 << 20
# pieces are begun in their order, and none while one so many before it is under way
WINDOW: Final = 16


class Piecewise(Protocol):
    """An object on its way in pieces; see Upload in gpuckpt.tools.remote."""

    @property
    def part(self) -> int:
        """The size of all pieces but the last; 0: any, one after the other."""

    @property
    def there(self) -> frozenset[int]:
        """Where the pieces begin that an earlier try has left."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write a piece, from any thread."""

    def close(self) -> None:
        """Return when the whole object is safe."""


class Store(Protocol):
    """What is needed of a folder of a store; tools/remote.py has it."""

    def names(self) -> dict[str, int]:
        """Return the size of every object below, by their names relative to the folder."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return a range of an object."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small object."""

    def upload(self, name: str, size: int) -> Piecewise:
        """Begin an object of so many bytes, or go on with it."""

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""

    def remove_all(self) -> None:
        """Remove all objects, and what was sent of others."""

    def close(self) -> None:
        """Let go of connections."""


class Landing(Protocol):
    """One place for one image."""

    @property
    def place(self) -> Location:
        """Where it is."""

    def begin(self) -> None:
        """Take the place, or go on with what an earlier copy of this image has left there.

        Raises:
            ImageExists: something else is there.
            NotWritable, NoSpace, StoreFailed: it cannot be written.
        """

    def names(self) -> dict[str, int]:
        """Return the size of what has arrived, by its name."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return a range of it."""

    def upload(self, name: str, size: int) -> Piecewise:
        """Begin a file of so many bytes, or go on with it."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def finish(self, document: bytes) -> None:
        """Make it an image: manifest.json comes last; raises as `begin` does."""

    def discard(self) -> bool:
        """Remove what an earlier copy of this image has left; whether there was any."""

    def close(self) -> None:
        """Let go of the place; what has arrived stays."""


class StoreLanding:
    """See Landing: a folder of a store."""

    def __init__(self, place: Url, store: Store, image_id: str) -> None:
        """Touch nothing yet; `store` is the folder at `place`."""
        self.place = place
        self._store = store
        self._claim = f"{names.COPY_CLAIM}{blake3(image_id.encode()).hexdigest()[:16]}"

    def begin(self) -> None:
        """See Landing. Of two that begin at once at least one sees the other, and gives way."""
        there = self._store.names()
        if not self._mine(there):
            raise self._taken(names.MANIFEST if names.MANIFEST in there else min(there))
        self._store.put(self._claim, b"")
        if others := claims(self._store.names()) - {self._claim}:
            self._store.remove(self._claim)
            raise self._taken(min(others))

    def names(self) -> dict[str, int]:
        """See Landing."""
        return self._store.names()

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Landing."""
        return self._store.read(name, start, length)

    def upload(self, name: str, size: int) -> Piecewise:
        """See Landing."""
        return self._store.upload(name, size)

    def remove(self, name: str) -> None:
        """See Landing."""
        self._store.remove(name)

    def finish(self, document: bytes) -> None:
        """See Landing."""
        if names.MANIFEST not in self._store.names():
            self._store.put(names.MANIFEST, document)
        elif self._store.read(names.MANIFEST, 0, len(document) + 1) != document:
            raise ImageExists(f"{self.place} exists already")
        with suppress(GpuckptError):  # it is an image all the same
            self._store.remove(self._claim)

    def discard(self) -> bool:
        """See Landing."""
        there = self._store.names()
        if there and not self._mine(there):
            raise ImageExists(f"{self.place} has what no copy of this image has left")
        if there:
            self._store.remove_all()
        return bool(there)

    def close(self) -> None:
        """See Landing."""
        self._store.close()

    def _taken(self, what: str) -> ImageExists:
        return ImageExists(
            f"{self.place} is in use: it has {what}",
            hint="Name a folder of its own for the image; a slash at the end puts it inside.",
        )

    def _mine(self, there: dict[str, int]) -> bool:
        return not there or (self._claim in there and names.MANIFEST not in there)
