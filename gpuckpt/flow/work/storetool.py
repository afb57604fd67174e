"""The stores that a URL can name, as the flow sees them; see gpuckpt.tools.remote."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpuckpt.image.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.image.uploading import Upload
    from gpuckpt.location import Url


T = TypeVar("T")


class StoreFolder(Protocol):
    """The folder of a store. Every call may come from any thread, and may raise StoreFailed."""

    def names(self) -> dict[str, int]:
        """Return the size of every object below the folder, by its name relative to it."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return so many bytes of an object, fewer only at its end; FileNotFoundError if none."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, over one of this name."""

    def upload(self, name: str, size: int, most: int = ...) -> Upload:
        """Begin an object of so many bytes, 0: not known, but hardly more than `most`."""

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""

    def remove_all(self) -> None:
        """Remove all objects, and parts of objects that were never finished."""

    def close(self) -> None:
        """Let go of connections."""


def asked(stores: StoresTool, url: Url, call: Callable[[StoreFolder], T], seconds: float) -> T:
    """Return what the folder of a URL answers within so many seconds.

    Raises:
        UsageError: nothing that is installed can talk to it.
        GpuckptError: it does not answer, or refuses.
    """

    def work() -> T:
        with closing(stores.folder(url)) as folder:
            return call(folder)

    return Asking(str(url), seconds)(work)


class StoresTool(Protocol):
    """All stores there are."""

    def folder(self, url: Url) -> StoreFolder:
        """Return the folder of a URL.

        Raises:
            UsageError: nothing that is installed can talk to it; says which extra to install.
            StoreFailed: it cannot be reached.
        """
