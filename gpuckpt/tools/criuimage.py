"""What CRIU's images say of a tree: pids, files, listeners, terminals.

Read from bytes, so that it does not matter how the image is stored. Field numbers are those of
CRIU 4.2.1, checked against its images; an image of another kind, a damaged or a forged one ends in
ImageDamaged and nothing else.
"""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.errors import ImageDamaged
from gpuckpt.tools.addresses import plain
from gpuckpt.tools.openfiles import Connection, FileRef, Listener, OpenFiles, Remap
from gpuckpt.tools.sockets import CLOSING, ESTABLISHED, KINDS, LISTENING, UNCONNECTED
from gpuckpt.tools.unixnames import SocketName
from gpuckpt.tools.wire import Message, little_words, records, rewritten
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FILES: Final = "files.img"

_PSTREE: Final = 0x50273030
_CORE: Final = 0x55053847
_FILES: Final = 0x56303138
_REMAPS: Final = 0x59133954

_LINKED, _GHOST = 0, 1  # RemapType in remap-file-path.proto
_TCP, _UDP = 6, 17
_STREAM: Final = 1
_EXTERNAL: Final = 1  # USK_EXTERN in uflags
_IPV4, _IPV6 = 2, 10
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}


class TaskIds(Value, frozen=True):
    """The numbers one process will have again."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    threads: tuple[int, ...]


def read_pstree(raw: bytes) -> tuple[TaskIds, ...]:
    """Read pstree.img: the tree's processes, the root first.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    return tuple(_task(one) for one in records(raw, _PSTREE, "pstree.img"))


def read_parent_death(raw: bytes) -> int:
    """Return the signal that the task of a core-PID.img wants at its parent's end, 0 for none.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    core = next(records(raw, _CORE, "core"), None)
    thread = core.message(5) if core is not None else None
    return thread.number(8) if thread is not None else 0


def _task(one: Message) -> TaskIds:
    pid, threads = one.number(1), one.numbers(5)
    # 4.2.1 writes a number out of nowhere as the one thread of a zombie
    if pid not in threads:
        threads = (pid,)
    return TaskIds(pid, one.number(2), one.number(3), one.number(4), threads)


def ids(tasks: Iterable[TaskIds]) -> tuple[int, ...]:
    """Return every number that must be free for a restore: pids, threads, groups, sessions.

    A group or session from outside the tree is among them only if the tree's root leads it:
    CRIU's shell-job puts the others into its own.
    """
    listed = tuple(tasks)
    own = {number for one in listed for number in (one.pid, *one.threads)}
    root = listed[0] if listed else None
    outside = {root.pgid, root.sid} - own if root else set()
    named = {number for one in listed for number in (one.pgid, one.sid)}
    return tuple(sorted((own | named) - outside - {0}))


def read_files(raw: bytes, remaps: bytes = b"") -> OpenFiles:
    """Read files.img, and remap-fpath.img if there is one.

    Left out is what a restore makes by itself: deleted files, /proc, the terminals' own nodes.

    Raises:
        ImageDamaged: these bytes are no such images.
    """
    entries = tuple(records(raw, _FILES, "files.img"))
    ttys = {tty.number(6) for one in entries if (tty := one.message(19))}
    pairs = tuple(records(remaps, _REMAPS, "remap-fpath.img")) if remaps else ()
    made = {one.number(1) for one in pairs}
    made |= {one.number(2) for one in pairs if one.number(3) == _LINKED}
    files: dict[str, FileRef] = {}
    terminals: list[str] = []
    listeners: list[Listener] = []
    for one in entries:
        regular, inet = one.message(3), one.message(4)
        if regular and regular.number(1) in ttys:
            terminals.append(_path(regular))
        elif regular and regular.number(1) not in made:
            found = _file(regular)
            if not found.path.startswith("/proc/"):
                files[found.path] = _stricter(files.get(found.path), found)
        listener = _listener(inet) if inet else None
        if listener and listener not in listeners:
            listeners.append(listener)
    return OpenFiles(
        tuple(files.values()),
        tuple(listeners),
        tuple(dict.fromkeys(terminals)),
        tuple(line for one in entries if (line := _connection(one.message(4)))),
        tuple(dict.fromkeys(path for one in entries if (path := _socket(one.message(16))))),
        tuple(_remaps(entries, pairs)),
        tuple(dict.fromkeys(name for one in entries if (name := _name(one.message(16))))),
    )


def _remaps(entries: Iterable[Message], pairs: Iterable[Message]) -> Iterator[Remap]:
    """Pair each deleted file with the name it will have for a moment.

    4.2.1 makes that of a ghost from the path and the ghost's number; a linked file is found under
    the name that the dump gave it.
    """
    regulars = {found.number(1): found for one in entries if (found := one.message(3))}
    for one in pairs:
        original, kind = regulars.get(one.number(1)), one.number(3)
        link = regulars.get(one.number(2))
        if original is None:
            continue
        if kind == _GHOST:
            path = _path(original)
            yield Remap(path, f"{path}.cr.{one.number(2):x}.ghost", linked=False)
        elif kind == _LINKED and link is not None:
            yield Remap(_path(original), _path(link), linked=True)


def _socket(unix: Message | None) -> str:
    """Return the path a Unix socket is bound to, "" if it has none, or it is removed already."""
    raw = _own_name(unix) if unix and not unix.number(15) else b""
    return raw.rstrip(b"\0").decode("utf-8", "surrogateescape") if raw[:1] == b"/" else ""


def _own_name(unix: Message) -> bytes:
    """Return the name that a socket has by itself: those of others outside are only sent to."""
    return b"" if unix.number(6) & _EXTERNAL else b"".join(unix.bytes(11)[-1:])


def _name(unix: Message | None) -> SocketName | None:
    """Return the name a Unix socket is bound to if that is no path.

    A connected stream has it from its listener, or loses it: 4.2.1 does not bind it again.
    """
    kind = unix.number(3) if unix else 0
    if unix is None or (kind, unix.number(4)) == (_STREAM, ESTABLISHED):
        return None
    raw = _own_name(unix)
    return SocketName(raw, KINDS.get(kind, "")) if raw[:1] == b"\0" else None


def rename_sockets(raw: bytes, name: Callable[[bytes], bytes]) -> bytes:
    """Return files.img with other names for Unix sockets, each as long as the one before.

    Raises:
        ImageDamaged: these bytes are no such image.
    """

    def same_length(old: bytes) -> bytes:
        new = name(old)
        return new if len(new) == len(old) else old

    return rewritten(raw, _FILES, FILES, {(16, 11): same_length})


def relocated(raw: bytes, path: Callable[[str], str]) -> bytes:
    """Return files.img with other paths: of files, folders and programs, and of Unix sockets.

    Everything that has a path is a regular file's entry there, be it open, mapped, a program, a
    working folder, or the name that a deleted file gets for a moment.

    Raises:
        ImageDamaged: these bytes are no such image.
    """

    def moved(old: bytes) -> bytes:
        bare = old.rstrip(b"\0")  # 4.2.1 writes the zero at the end of a socket's name
        if bare[:1] != b"/":
            return old
        new = os.fsencode(path(bare.decode("utf-8", "surrogateescape")))
        return new + old[len(bare) :]

    return rewritten(raw, _FILES, FILES, {(3, 6): moved, (16, 11): moved})


def read_file_ids(raw: bytes) -> dict[int, str]:
    """Read files.img for what each file id stands for, in words; ids of other kinds are left out.

    Raises:
        ImageDamaged: these bytes are no such image.
    """
    found: dict[int, str] = {}
    for one in records(raw, _FILES, "files.img"):
        regular, inet, unix = one.message(3), one.message(4), one.message(16)
        if regular:
            found[one.number(2)] = _path(regular)
        elif inet:
            found[one.number(2)] = _in_words(inet)
        elif unix:
            name = b"".join(unix.bytes(11)).rstrip(b"\0").decode("utf-8", "backslashreplace")
            found[one.number(2)] = f"unix socket {name.replace(chr(0), '@')}".rstrip()
    return found


def _in_words(inet: Message) -> str:
    protocol = {_TCP: "tcp", _UDP: "udp"}.get(inet.number(5), "socket")
    raw = little_words(inet.numbers(11))
    known = len(raw) in _ADDRESS_BYTES.values()
    return f"{protocol} {ipaddress.ip_address(raw) if known else '?'} port {inet.number(7)}"


def _path(regular: Message) -> str:
    # 4.2.1 writes the leading slash; crit and older notes show paths without it
    return "/" + regular.text(6).lstrip("/")


def _file(regular: Message) -> FileRef:
    return FileRef(
        path=_path(regular),
        size=regular.optional(8),
        mode=regular.optional(10),
        build_id=little_words(regular.numbers(11)).hex(),
        flags=regular.number(2),
        position=regular.number(3),
    )


def _stricter(before: FileRef | None, now: FileRef) -> FileRef:
    """Of two descriptors on one file keep the one that has more to be checked."""
    if before is None:
        return now
    kept = now if before.size is None and now.size is not None else before
    writers = [one.position for one in (before, now) if one.writes]
    return replace(kept, position=max(writers)) if writers else kept


def _listener(inet: Message) -> Listener | None:
    """Return what has to be bound again, None for connected and for unbound sockets."""
    protocol, port = inet.number(5), inet.number(7)
    listening = protocol == _TCP and inet.number(6) == LISTENING
    if not listening and not (protocol == _UDP and port):
        return None
    dual = inet.number(3) == _IPV6 and inet.optional(15) == 0
    return Listener("tcp" if listening else "udp", _address(inet, 11), port, dual=dual)


def _connection(inet: Message | None) -> Connection | None:
    """Return both ends of a connected TCP socket, None for others."""
    if inet is None or inet.number(5) != _TCP or inet.number(6) in {LISTENING, UNCONNECTED}:
        return None
    ends = plain(_address(inet, 11)), inet.number(7), plain(_address(inet, 12)), inet.number(8)
    return Connection(*ends, closing=inet.number(6) in CLOSING)


def _address(inet: Message, field: int) -> str:
    """Read an address: as it lies in memory, in network order, cut into words of this machine."""
    raw = little_words(inet.numbers(field))
    if len(raw) != _ADDRESS_BYTES.get(inet.number(3)):
        raise ImageDamaged("files.img holds a socket whose address has the wrong length")
    return str(ipaddress.ip_address(raw))
