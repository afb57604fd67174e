"""Any store that fsspec can talk to, in the words all of them know."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import fsspec

if TYPE_CHECKING:
    from gpuckpt.location import Url
    from gpuckpt.tools.remote import Upload


class AnyDrive:
    """A folder of an fsspec file system."""

    def __init__(self, fs: Any, root: str) -> None:  # noqa: ANN401 - fsspec has no types
        """Work below `root`, as the file system writes paths."""
        self.fs = fs
        self.root = root.rstrip("/")

    def path(self, name: str) -> str:
        """Return the file system's path of an object."""
        return f"{self.root}/{name}"

    def limit(self, size: int) -> dict[str, float]:
        """Return how fsspec is told to wait no longer than so many bytes may take, if it can be."""
        del size
        return {}

    def sizes(self) -> dict[str, int]:
        """See Drive."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.find(self.root, detail=True, **self.limit(0))
        except FileNotFoundError:
            return {}
        prefix = f"{self.root}/"
        return {
            path.removeprefix(prefix): int(one["size"] or 0)
            for path, one in found.items()
            if path.startswith(prefix)
        }

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Drive."""
        limit = self.limit(length)
        data: bytes = self.fs.cat_file(self.path(name), start=start, end=start + length, **limit)
        return data

    def put(self, name: str, data: bytes) -> None:
        """See Drive."""
        path = self.path(name)
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, data)

    def upload(self, name: str, size: int, most: int) -> Upload:
        """See Drive."""
        del size, most
        return _Stream(self, self.path(name))

    def remove(self, name: str) -> None:
        """See Drive."""
        self.fs.rm_file(self.path(name))

    def remove_all(self) -> None:
        """See Drive; one by one, for fsspec's own `rm` takes `*`, `?` and `[` for patterns."""
        for name in self.sizes():
            with suppress(FileNotFoundError):
                self.remove(name)
        folders = self.fs.find(self.root, withdirs=True)
        for path in sorted({self.root, *folders}, reverse=True):
            if path.count("/") > 1:  # a whole store is nobody's image
                with suppress(OSError, NotImplementedError):
                    self.fs.rmdir(path)

    def close(self) -> None:
        """See Drive."""


class _Stream:
    """An object of a store whose only way to take one is from its start to its end."""

    part = 0
    there: frozenset[int] = frozenset()

    def __init__(self, drive: AnyDrive, path: str) -> None:
        drive.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._drive = drive
        self._path = path
        self._file = drive.fs.open(path, "wb")

    def write(self, offset: int, data: bytes | memoryview) -> None:
        del offset
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def abort(self) -> None:
        with suppress(Exception):
            self._file.discard()
        with suppress(Exception):
            self._drive.fs.rm_file(self._path)


def drive(url: Url) -> AnyDrive:
    """Return the store of a URL."""
    fs, root = fsspec.core.url_to_fs(url.secret, use_listings_cache=False)
    return AnyDrive(fs, root)
