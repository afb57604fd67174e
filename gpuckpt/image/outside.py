"""What a manifest says of the world outside the image: files, ports, names, connections.

A part of the wire types of format 1; see manifest.py for the whole.
"""

from __future__ import annotations

import msgspec


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file outside the image that the restore expects unchanged (from CRIU's files.img).

    `position` is where its reader or writer stood, `uses` say what it is to the tree: exe, mapped,
    open, cwd, root. `digest` is BLAKE3 of all of it or, if `sampled`, of its size and of samples;
    "" if none was taken.
    """

    path: str
    size: int | None
    mode: int | None
    build_id: str
    mtime_ns: int | None
    flags: int = 0
    uid: int | None = None
    gid: int | None = None
    position: int | None = None
    uses: tuple[str, ...] = ()
    digest: str = ""
    sampled: bool = False


class ListenerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A port the restored tree will bind; `dual`: by an IPv6 socket that takes IPv4 as well."""

    protocol: str
    address: str
    port: int
    dual: bool = False


class ConnectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A TCP connection of the tree, both ends; `closing`: one of them will send no more."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    closing: bool = False


class RemapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted file in use: for a moment a restore makes a name for it beside `path`.

    `name` is that name; with `linked` it is one that the dump left and that must still be there.
    """

    path: str
    name: str
    linked: bool


class NameRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A name of a Unix socket that is no path; `kind` is stream, dgram or seqpacket."""

    name: bytes
    kind: str


class LockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A lock on a whole file; `kind` is flock, posix or ofdlck."""

    path: str
    kind: str
    exclusive: bool


class PythonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The folder a Python of the tree imports from, and the packages in it, `name-version`.

    `program` is the file that is this Python, its shared library or its program.
    """

    prefix: str
    packages: tuple[str, ...]
    version: str = ""
    implementation: str = ""
    program: str = ""


class PipeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pipe whose other end somebody outside of the tree had: it comes back without him."""

    pid: int
    fd: int
    writes: bool
    holder: str


class FolderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A folder in which a restore makes names; if it is missing, it is made itself."""

    path: str
    mode: int
    uid: int
    gid: int


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What the tree uses that is not in the image.

    `sockets` are the paths of its Unix sockets, `names` what others of them are bound to, `servers`
    the paths of those of others that it sends to; `folders` those above its sockets and carried
    files, outermost first.
    """

    files: tuple[FileRecord, ...]
    listeners: tuple[ListenerRecord, ...]
    terminals: tuple[str, ...]
    connections: tuple[ConnectionRecord, ...] = ()
    sockets: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    locks: tuple[LockRecord, ...] = ()
    remaps: tuple[RemapRecord, ...] = ()
    pythons: tuple[PythonRecord, ...] = ()
    pipes: tuple[PipeRecord, ...] = ()
    folders: tuple[FolderRecord, ...] = ()
    names: tuple[NameRecord, ...] = ()
