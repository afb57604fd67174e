"""Folders of hosts that are reached by ssh: through sftp, a few connections side by side.

A host whose key known_hosts does not have is refused: whoever can write an image decides what a
restore runs. ~/.ssh/config is read for HostName, Port, User and IdentityFile.
"""

from __future__ import annotations

import posixpath
import queue
import stat
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.location import Url
    from gpuckpt.tools.remote import Upload

_T = TypeVar("_T")

_CONNECTIONS: Final = 8  # sshd takes ten that have not proved who they are, by default
_PATIENCE: Final = 20.0
_TRIES: Final = 3
_PART: Final = 16 << 20
_ANSWER: Final = 32 << 10  # what an answer holds at most
_WINDOW: Final = 16  # pieces; see Upload
_KNOWN: Final = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")
_FINAL: Final = (FileNotFoundError, PermissionError, paramiko.AuthenticationException)


class _Connection(SFTPFileSystem):  # type: ignore[misc] # fsspec has no types
    """One connection; unknown hosts are refused, and nothing waits forever."""

    cachable = False

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        for name in _KNOWN:
            with suppress(OSError):
                self.client.load_system_host_keys(str(Path(name).expanduser()))
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.client.connect(
            self.host,
            timeout=_PATIENCE,
            banner_timeout=_PATIENCE,
            auth_timeout=_PATIENCE,
            **self.ssh_kwargs,
        )
        self.ftp = self.client.open_sftp()
        self.ftp.get_channel().settimeout(_PATIENCE)

    def close(self) -> None:
        with suppress(Exception):
            self.client.close()


class SftpDrive:
    """A folder of a host, by its path from the root on."""

    def __init__(self, url: Url) -> None:
        """Connect once, to know that it can be done."""
        self._root = f"/{url.folder}"
        self._host, self._options = _where(url)
        self._free: queue.LifoQueue[_Connection | None] = queue.LifoQueue()
        for _ in range(_CONNECTIONS - 1):
            self._free.put(None)
        self._free.put(_Connection(self._host, **self._options))
        self._made: set[str] = set()
        self._lock = threading.Lock()

    def sizes(self) -> dict[str, int]:
        """See Drive."""
        return self.often(lambda ftp: dict(_below(ftp, self._root, "")))

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Drive."""

        def read(ftp: Any) -> bytes:  # noqa: ANN401 - paramiko's client
            with ftp.open(self._path(name), "rb", bufsize=0) as file:
                # asked for more than there is, it would wait for an answer that is none
                end = min(start + length, file.stat().st_size)
                # in the pieces that it asks for, and without its buffer: 50 MB/s instead of 10
                asked = [(at, min(_ANSWER, end - at)) for at in range(start, end, _ANSWER)]
                parts: Iterator[bytes] = file.readv(asked)
                return b"".join(parts) if asked else b""

        return self.often(read)

    def put(self, name: str, data: bytes) -> None:
        """See Drive."""
        folder, _, last = self._path(name).rpartition("/")
        self._folder(folder)
        aside = f"{folder}/.{last}.part"
        pieces = _Pieces(self, aside, 0)
        if data:
            pieces.write(0, data)
        pieces.close()
        # at once: nobody ever finds half a manifest.json
        self.often(lambda ftp: ftp.posix_rename(aside, self._path(name)))

    def upload(self, name: str, size: int, most: int = 0) -> Upload:
        """See Drive."""
        del most
        self._folder(self._path(name).rpartition("/")[0])
        return _Pieces(self, self._path(name), size)

    def remove(self, name: str) -> None:
        """See Drive."""
        self.often(lambda ftp: ftp.remove(self._path(name)))

    def remove_all(self) -> None:
        """See Drive."""
        self.often(lambda ftp: _clear(ftp, self._root))
        self._made.clear()

    def close(self) -> None:
        """See Drive."""
        for _ in range(_CONNECTIONS):
            with suppress(queue.Empty):
                connection = self._free.get_nowait()
                if connection is not None:
                    connection.close()
                self._free.put(None)

    def often(self, work: Callable[[Any], _T]) -> _T:
        """Do what may be done twice, with another connection if one fails."""
        for left in reversed(range(_TRIES)):
            try:
                with self._lent() as connection:
                    return work(connection.ftp)
            except _FINAL:
                raise
            except (OSError, EOFError, paramiko.SSHException):
                if not left:
                    raise
        raise AssertionError

    @contextmanager
    def _lent(self) -> Iterator[_Connection]:
        connection = self._free.get()
        try:
            connection = connection or _Connection(self._host, **self._options)
            yield connection
        except (FileNotFoundError, PermissionError):
            raise
        except BaseException:
            if connection is not None:
                connection.close()
            connection = None
            raise
        finally:
            self._free.put(connection)

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def _folder(self, path: str) -> None:
        """Make a folder and all above it, once, for this user alone."""
        with self._lock:
            if path in self._made:
                return
            missing: list[str] = []
            while path not in {"/", ""} and not self.often(partial(_exists, path)):
                missing.append(path)
                path = path.rpartition("/")[0]
            for one in reversed(missing):
                with suppress(OSError):  # another made it: it shows when it is used
                    self.often(partial(_make, one))
            self._made.update(missing)


class _Pieces:
    """One file in pieces; each is written at its place, and confirmed."""

    def __init__(self, drive: SftpDrive, path: str, size: int) -> None:
        self.part = _PART
        self.there: frozenset[int] = frozenset()
        self._drive = drive
        self._path = path
        self._size = size
        if size:
            drive.often(self._look)
        if not self.there:
            drive.often(self._create)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        whole = bytes(data)
        self._size = max(self._size, offset + len(whole))

        def send(ftp: Any) -> None:  # noqa: ANN401 - paramiko's client
            with ftp.open(self._path, "r+b", bufsize=0) as file:
                file.seek(offset)
                file.set_pipelined(True)
                file.write(whole[:-1])
                # this write waits, and raises, for all before it
                file.set_pipelined(False)
                file.write(whole[-1:])

        self._drive.often(send)

    def close(self) -> None:
        size: int = self._drive.often(lambda ftp: ftp.stat(self._path).st_size)
        if size != self._size:
            raise OSError(f"the host has {size} of {self._size} bytes")

    def abort(self) -> None:
        with suppress(Exception):
            self._drive.often(lambda ftp: ftp.remove(self._path))

    def _look(self, ftp: Any) -> None:  # noqa: ANN401 - paramiko's client
        """Know what an earlier try has left: pieces are begun in their order."""
        try:
            has = ftp.stat(self._path).st_size
        except FileNotFoundError:
            return
        if has <= self._size:
            self.there = frozenset(range(0, has - (_WINDOW + 1) * _PART, _PART))

    def _create(self, ftp: Any) -> None:  # noqa: ANN401 - paramiko's client
        # not cut off where the bytes are known: another copy of them may be an image by now
        with ftp.open(self._path, "ab" if self._size else "wb") as file:
            file.chmod(0o600)
            if file.stat().st_size > self._size:
                file.truncate(self._size)


def _below(ftp: Any, folder: str, prefix: str) -> Iterator[tuple[str, int]]:  # noqa: ANN401
    try:
        entries = ftp.listdir_attr(folder)
    except FileNotFoundError:
        return
    for one in entries:
        name = f"{prefix}{one.filename}"
        if stat.S_ISDIR(one.st_mode):
            yield from _below(ftp, f"{folder}/{one.filename}", f"{name}/")
        else:  # links too: `remove_all` would remove them, so they must be seen
            yield name, one.st_size


def _clear(ftp: Any, folder: str) -> None:  # noqa: ANN401 - paramiko's client
    try:
        entries = ftp.listdir_attr(folder)
    except FileNotFoundError:
        return
    for one in entries:
        path = f"{folder}/{one.filename}"
        if stat.S_ISDIR(one.st_mode):
            _clear(ftp, path)
        else:
            ftp.remove(path)
    ftp.rmdir(folder)


def _make(path: str, ftp: Any) -> None:  # noqa: ANN401 - paramiko's client
    ftp.mkdir(path, 0o700)


def _exists(path: str, ftp: Any) -> bool:  # noqa: ANN401 - paramiko's client
    try:
        ftp.stat(path)
    except FileNotFoundError:
        return False
    return True


def _where(url: Url) -> tuple[str, dict[str, Any]]:
    """Return the host to connect to, and how, by the URL and then by ~/.ssh/config."""
    alone = f"{url.scheme}://{url.secret.split('/')[2]}/"  # `?` and `#` are names here
    given = SFTPFileSystem._get_kwargs_from_urls(alone)  # noqa: SLF001 - fsspec's way
    host = given.pop("host")
    known: dict[str, Any] = {}
    with suppress(OSError):
        path = str(Path("~/.ssh/config").expanduser())
        known = dict(paramiko.SSHConfig.from_path(path).lookup(host))
    options: dict[str, Any] = {"username": known.get("user"), **given}
    options["port"] = int(given.get("port") or known.get("port", 22))
    if "identityfile" in known:
        options["key_filename"] = [str(Path(one).expanduser()) for one in known["identityfile"]]
    return known.get("hostname", host), options


def drive(url: Url) -> SftpDrive:
    """Return the folder of a URL."""
    return SftpDrive(url)
