"""Where an image is: a folder of this host, or a URL of a store that fsspec can talk to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SECRET: Final = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


class Url:
    """The URL of a folder of a store; it never changes, and never shows a password.

    No Struct: msgspec would write the text as it was given into JSON, password and all.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Take a text that `is_url`; a slash at its end means nothing."""
        scheme, path = text.split("://", 1)
        self._text = f"{scheme.lower()}://{path.rstrip('/')}"

    @property
    def scheme(self) -> str:
        """Which kind of store it is: s3, sftp."""
        return self._text.partition(":")[0]

    @property
    def host(self) -> str:
        """The bucket or host, with a port and without a user."""
        return self._text.partition("://")[2].partition("/")[0].rpartition("@")[2]

    @property
    def folder(self) -> str:
        """What follows the host, without slashes at its ends."""
        return self._text.partition("://")[2].partition("/")[2].strip("/")

    @property
    def name(self) -> str:
        """The last part of the folder, empty for a whole store."""
        return self.folder.rpartition("/")[2]

    @property
    def secret(self) -> str:
        """The text as it was given, for whoever connects."""
        return self._text

    @property
    def tells(self) -> bool:
        """Whether it holds a password."""
        return str(self) != self._text

    def __truediv__(self, name: str) -> Url:
        """Return the URL of something inside."""
        return Url(f"{self._text}/{name}")

    def __str__(self) -> str:
        """Return it as people may see it."""
        return _SECRET.sub(r"\1:***@", self._text)

    def __repr__(self) -> str:
        """Return the same for logs."""
        return f"Url({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        """Compare the texts."""
        return isinstance(other, Url) and other._text == self._text

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(self._text)


Location = Path | Url


def is_url(text: str) -> bool:
    """Whether a text means a URL rather than a path."""
    return _SCHEME.match(text) is not None
