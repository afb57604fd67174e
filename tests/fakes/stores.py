"""Stores that exist only in memory, every call of which the fake host counts and may let fail."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuckpt.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.location import Url

    Around = Callable[[str, Callable[[], Any]], Any]


_AT_WORK = threading.Lock()  # not of the stores: those are pickled


def _plainly(_: str, call: Callable[[], Any]) -> Any:
    return call()


@dataclass
class FakeStores:
    """All objects by URL and name, and parts of objects that were never finished.

    `around` runs each call; `away` says why nothing answers, "" if all do.
    """

    around: Around = _plainly
    objects: dict[str, dict[str, bytes]] = field(default_factory=dict, repr=False)
    unfinished: set[str] = field(default_factory=set)
    away: str = ""
    part: int = 0

    def folder(self, url: Url) -> FakeFolder:
        return FakeFolder(self, str(url))

    def call(self, name: str, effect: Callable[[], Any]) -> Any:
        """Do what a store does, or fail as one does that is away."""

        def answered() -> Any:
            if self.away:
                raise StoreFailed(f"the store is {self.away}")
            with _AT_WORK:
                return effect()

        try:
            return self.around(name, answered)
        except FileNotFoundError:
            raise
        except OSError as why:
            raise StoreFailed(str(why)) from why


@dataclass
class FakeFolder:
    """One folder of them."""

    stores: FakeStores
    url: str

    @property
    def there(self) -> dict[str, bytes]:
        return self.stores.objects.setdefault(self.url, {})

    def names(self) -> dict[str, int]:
        found: dict[str, int] = self.stores.call(
            "store.names", lambda: {name: len(data) for name, data in self.there.items()}
        )
        return found

    def read(self, name: str, start: int, length: int) -> bytes:
        def read() -> bytes:
            if name not in self.there:
                raise FileNotFoundError(name)
            return self.there[name][start : start + length]

        data: bytes = self.stores.call("store.read", read)
        return data

    def put(self, name: str, data: bytes) -> None:
        self.stores.call("store.put", lambda: self.there.update({name: data}))

    def upload(self, name: str, size: int, most: int = 0) -> FakeUpload:
        del size, most
        made: FakeUpload = self.stores.call("store.upload", lambda: FakeUpload(self, name))
        return made

    def remove(self, name: str) -> None:
        self.stores.call("store.remove", lambda: self.there.pop(name, None))

    def remove_all(self) -> None:
        def remove() -> None:
            self.there.clear()
            self.stores.unfinished = {
                one for one in self.stores.unfinished if not one.startswith(self.url)
            }

        self.stores.call("store.remove_all", remove)

    def close(self) -> None:
        pass


class FakeUpload:
    """One object on its way."""

    def __init__(self, folder: FakeFolder, name: str) -> None:
        self.part = folder.stores.part
        self.there: frozenset[int] = frozenset()
        self._folder = folder
        self._name = name
        self._pieces: dict[int, bytes] = {}

    @property
    def _key(self) -> str:
        return f"{self._folder.url}/{self._name}"

    def write(self, offset: int, data: bytes | memoryview) -> None:
        def write() -> None:
            self._folder.stores.unfinished.add(self._key)
            self._pieces[offset] = bytes(data)

        self._folder.stores.call("upload.write", write)

    def close(self) -> None:
        def close() -> None:
            whole = b""
            for offset, data in sorted(self._pieces.items()):
                assert offset == len(whole), f"{self._name} has a hole before {offset}"
                whole += data
            self._folder.there[self._name] = whole
            self._folder.stores.unfinished.discard(self._key)

        self._folder.stores.call("upload.close", close)

    def abort(self) -> None:
        self._folder.stores.unfinished.discard(self._key)
