"""Folders of stores, by URL: objects listed, read in ranges, written, removed.

fsspec is loaded when the first of them is made, never for an image of this host. What is foreign
to each kind of store stands beside this file: remote_s3, remote_sftp. All that goes wrong leaves
here as StoreFailed that names host and object, except FileNotFoundError for an object that is not
there. Credentials come from where the store's own programs find them, and are told to nobody.
"""

from __future__ import annotations

import importlib
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpuckpt.errors import GpuckptError, StoreFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.location import Url

_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "sftp": "sftp", "ssh": "sftp"}
# at DEBUG, which -v asks for, they would tell what requests are signed with
_TALKERS: Final = ("aiobotocore", "asyncio", "boto3", "botocore", "fsspec", "paramiko", "s3fs")
_LONGEST: Final = 200


class Upload(Protocol):
    """One object on its way; it is there for others when `close` returns, not before for S3.

    `part` is the size of the pieces that `write` takes, from any thread and in any order, the last
    one shorter; 0: any pieces, one after the other. `there` has what of them, by their offsets, is
    there already from an earlier try with the same size: so pieces of an object whose size is known
    are begun in their order, and none while one 16 before it is under way.
    """

    part: int
    there: frozenset[int]

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Send a piece; when it returns the store has it."""

    def close(self) -> None:
        """Have the store confirm the object."""

    def abort(self) -> None:
        """Take back what was sent; never raises."""


class Drive(Protocol):
    """One kind of store; may raise anything, and be called from any thread."""

    def sizes(self) -> dict[str, int]:
        """Return the objects below, by their names relative to the folder."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return a range of an object, less only at its end."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, over one of this name."""

    def upload(self, name: str, size: int, most: int) -> Upload:
        """Begin an object of so many bytes, 0: not known, nor `most`; over one of this name."""

    def remove(self, name: str) -> None:
        """Remove an object; FileNotFoundError if there is none."""

    def remove_all(self) -> None:
        """Remove all objects, unfinished ones too."""

    def close(self) -> None:
        """Let go of connections."""


class Stores:
    """All stores there are."""

    def folder(self, url: Url) -> RemoteFolder:
        """Return the folder of a URL; see RemoteFolder."""
        return RemoteFolder(url)


class RemoteFolder:
    """The folder of a store that a URL names; every method may be called from any thread."""

    def __init__(self, url: Url) -> None:
        """Load what talks to this kind of store.

        Raises:
            UsageError: nothing here can; says which extra of gpuckpt to install.
            StoreFailed: it cannot be reached.
        """
        self.url = url
        with self._told(""):
            self._drive = _drive(url)

    def names(self) -> dict[str, int]:
        """Return the size of every object below the folder, by their names relative to it."""
        with self._told(""):
            return self._drive.sizes()

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return so many bytes of an object, fewer only at its end.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._told(name, FileNotFoundError):
            return self._drive.read(name, start, length) if length > 0 else b""

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, over one of this name."""
        with self._told(name):
            self._drive.put(name, data)

    def upload(self, name: str, size: int, most: int = 0) -> Upload:
        """Begin an object of so many bytes, in parts where the store takes them.

        0 bytes: not known, but hardly more than `most`, if that is known.
        """
        with self._told(name):
            return _Told(self, name, self._drive.upload(name, size, most))

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._told(name):
            try:
                self._drive.remove(name)
            except FileNotFoundError:
                return

    def remove_all(self) -> None:
        """Remove all objects, and parts of objects that were never finished."""
        with self._told(""):
            self._drive.remove_all()

    def close(self) -> None:
        """Let go of connections."""
        with self._told(""):
            self._drive.close()

    @contextmanager
    def _told(self, name: str, *let: type[Exception]) -> Iterator[None]:
        """Turn what a store's library raises into what we say, but for what is let through."""
        try:
            yield
        except GpuckptError:
            raise
        except Exception as why:
            if isinstance(why, let):
                raise
            what = f"{self.url}/{name}" if name else str(self.url)
            raise StoreFailed(f"{what}: {words(why)}", hint=_hint(self.url, why)) from why


class _Told:
    """An upload whose failures are told as those of the folder."""

    def __init__(self, folder: RemoteFolder, name: str, inner: Upload) -> None:
        self._folder = folder
        self._name = name
        self._inner = inner
        self.part = inner.part
        self.there = inner.there

    def write(self, offset: int, data: bytes | memoryview) -> None:
        with self._folder._told(self._name):  # noqa: SLF001 - a part of it
            self._inner.write(offset, data)

    def close(self) -> None:
        with self._folder._told(self._name):  # noqa: SLF001 - a part of it
            self._inner.close()

    def abort(self) -> None:
        self._inner.abort()


def _drive(url: Url) -> Drive:
    for name in _TALKERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    extra = _EXTRAS.get(url.scheme)
    try:
        drive: Any = importlib.import_module(f"gpuckpt.tools.remote_{extra or 'any'}")
        found: Drive = drive.drive(url)
    except (ImportError, ValueError) as why:
        what = f"gpuckpt[{extra}]" if extra else "what fsspec needs for it"
        raise UsageError(
            f"{url}: nothing that is installed here can talk to {url.scheme}:// ({why})",
            hint=f"pip install '{what}'" if extra else f"Install {what}.",
        ) from why
    return found


def words(why: BaseException) -> str:
    """Return what a library's error says, in one line of printable characters."""
    text = getattr(why, "strerror", None) or str(why)
    text = text or ("no answer in time" if isinstance(why, TimeoutError) else type(why).__name__)
    line = " ".join(str(text).split())
    return "".join(one if one.isprintable() else "?" for one in line)[:_LONGEST]


def _hint(url: Url, why: BaseException) -> str:
    if isinstance(why, PermissionError) or "redentials" in str(why):
        places = {"s3": "AWS_ACCESS_KEY_ID, AWS_PROFILE or ~/.aws", "sftp": "ssh-agent or ~/.ssh"}
        known = places.get(_EXTRAS.get(url.scheme, ""), "where the store's own programs look")
        return f"Credentials are taken from {known}; they must allow this."
    return "Look whether the store can be reached from here, then try again."
