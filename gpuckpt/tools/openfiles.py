"""What CRIU recorded of what a tree has open and a restore looks for outside the image."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.tools.unixnames import SocketName


class FileRef(Value, frozen=True):
    """One file a tree has open or mapped, as CRIU recorded it (files.img).

    `size` and `mode` are None where CRIU does not check them; `build_id` is hex, "" if none.
    `position` is where its descriptor stands; of several that of who has written most.
    """

    path: str
    size: int | None
    mode: int | None
    build_id: str
    flags: int = 0
    position: int = 0

    @property
    def writes(self) -> bool:
        """Whether it is open for writing."""
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class Listener(Value, frozen=True):
    """A listening TCP or bound UDP socket of a tree; `dual`: of IPv6, and takes IPv4 as well."""

    protocol: str
    address: str
    port: int
    dual: bool = False


class Connection(Value, frozen=True):
    """A TCP connection of a tree; `closing`: one end, or both, will send no more."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    closing: bool = False


class Remap(Value, frozen=True):
    """A deleted file in use, which a restore gives a `name` beside its `path` for a moment.

    `linked`: the name was left by the dump; otherwise the restore makes it from the image.
    """

    path: str
    name: str
    linked: bool


class OpenFiles(Value, frozen=True):
    """What a restore expects outside the image.

    `sockets` are the paths of Unix sockets, `names` those of their names that are no paths.
    """

    files: tuple[FileRef, ...]
    listeners: tuple[Listener, ...]
    terminals: tuple[str, ...]
    connections: tuple[Connection, ...] = ()
    sockets: tuple[str, ...] = ()
    remaps: tuple[Remap, ...] = ()
    names: tuple[SocketName, ...] = ()
