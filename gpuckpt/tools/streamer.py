"""The server side of `criu --stream`: every CRIU image travels through a pipe of its own.

CRIU (img-streamer.c, seen in 4.2.1) connects to a UNIX socket in its images folder and asks for
one file after the other; each request carries one end of a fresh pipe. On a dump nothing is
answered, end of file on a pipe ends that image. On a restore the server says first whether it has
the image. Neither side can send an error: a server that must refuse closes its end early.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import DumpFailed, GpuckptError
from gpuckpt.tools.pidspace import descends

if TYPE_CHECKING:
    from collections.abc import Callable

CAPTURE_SOCKET = "streamer-capture.sock"
SERVE_SOCKET = "streamer-serve.sock"
LAST_IMAGE = "inventory.img"
# img-streamer.proto has names of a few dozen bytes; CRIU's own limit is 10 KiB
SHORTEST_REQUEST, LONGEST_REQUEST = 2, 10 << 10
# the hook asks for a verdict when CRIU has sent everything; our thread may lag by scheduling only
LAST_REQUEST_PATIENCE = 60.0
_PEER = struct.Struct("3i")


class Streamer:
    """What capture and serve share: the socket, the one client, a thread per image.

    `fd` becomes readable at the first failure, which `failure` then holds.
    """

    def __init__(self, folder: Path, socket_name: str) -> None:
        """Listen in `folder`, which must be private: whoever connects gets the job's memory."""
        self.failure: BaseException | None = None
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._path = folder / socket_name
        self._listener = _listen(folder, socket_name)
        self._client: socket.socket | None = None
        self._server: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._lock = threading.Lock()

    def start(self, peer: int, *, below: bool = False) -> None:
        """Begin to serve the process `peer`, or one that it has started, and nobody else."""
        name = f"streamer-{peer}"
        args = (peer, below)
        self._server = threading.Thread(target=self._serve, args=args, name=name, daemon=True)
        self._server.start()

    def drain(self) -> None:
        """Wait until every image that was asked for has been moved; raise the first failure."""
        self._join()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Hang up and wait for the threads; CRIU sees broken pipes if it still runs."""
        self._closing = True
        self.hang_up()
        if self._server is not None:
            self._server.join()
        self._join()
        self._listener.close()
        if self._client is not None:
            self._client.close()
        self._path.unlink(missing_ok=True)
        os.close(self.fd)
        self.fd = -1

    def _serve(self, peer: int, below: bool) -> None:
        try:
            with suppress(OSError):  # closed while waiting: nobody ever came
                self._client, _ = self._listener.accept()
            if self._client is None:
                return
            _check_peer(self._client, peer, below=below)
            self._path.unlink(missing_ok=True)
            while (name := _read_request(self._client)) is not None:
                self._request(self._client, name)
        except BaseException as why:  # noqa: BLE001 - told to the thread that waits
            self._fail(why)

    def _join(self) -> None:
        while True:
            with self._lock:
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                threads = list(self._threads)
            if not threads:
                return
            for thread in threads:
                thread.join()

    def _request(self, client: socket.socket, name: str) -> None:
        raise NotImplementedError

    def _move(self, work: Callable[[str, int], None], name: str, fd: int) -> None:
        """Move one image in a thread of its own: some stay open to the end of the dump."""

        def body() -> None:
            try:
                work(name, fd)
            except BaseException as why:  # noqa: BLE001 - told to the thread that waits
                self._fail(why)
            finally:
                os.close(fd)

        thread = threading.Thread(target=body, name=f"image-{name}", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _fail(self, why: BaseException) -> None:
        with self._lock:
            if self._closing and not isinstance(why, GpuckptError):
                return
            if self.failure is None:
                self.failure = why
        self.hang_up()
        with suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def hang_up(self) -> None:
        """End the conversation; CRIU finds its stream broken and fails."""
        client = self._client or self._listener
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


class Capture(Streamer):
    """Receives the images of a dump. `store(name, fd)` reads one to its end, in its own thread."""

    def __init__(self, folder: Path, store: Callable[[str, int], None]) -> None:
        """Listen where `criu dump --stream -D folder` will connect."""
        super().__init__(folder, CAPTURE_SOCKET)
        self._store = store
        self._complete = threading.Event()

    def drain(self) -> None:
        """Wait for all images, CRIU's last one included.

        Raises:
            DumpFailed: the last image never came.
        """
        came = self._complete.wait(LAST_REQUEST_PATIENCE)
        super().drain()
        if not came:
            raise DumpFailed(f"CRIU never sent {LAST_IMAGE}, its last image: the dump is not whole")

    def _request(self, client: socket.socket, name: str) -> None:
        self._move(self._store, name, _read_pipe(client))
        if name == LAST_IMAGE:
            self._complete.set()

    def _fail(self, why: BaseException) -> None:
        super()._fail(why)
        self._complete.set()


class Serve(Streamer):
    """Hands out the images of a restore; `send(name, fd)` writes one, in its own thread."""

    def __init__(
        self, folder: Path, has: Callable[[str], bool], send: Callable[[str, int], None]
    ) -> None:
        """Listen where `criu restore --stream -D folder` will connect."""
        super().__init__(folder, SERVE_SOCKET)
        self._has = has
        self._send = send

    def _request(self, client: socket.socket, name: str) -> None:
        if not self._has(name):
            client.sendall(_reply(exists=False))
            return
        client.sendall(_reply(exists=True))
        self._move(self._send_all, name, _read_pipe(client))

    def _send_all(self, name: str, fd: int) -> None:
        # CRIU may close a small image once it has read what it wants (seen in 4.2.1); its exit
        # status decides, not our broken pipe.
        with suppress(BrokenPipeError):
            self._send(name, fd)


def _listen(folder: Path, name: str) -> socket.socket:
    """Bind through a descriptor: a socket's path may have 107 bytes, a folder's many more."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{fd}/{name}")
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener


def _check_peer(client: socket.socket, peer: int, *, below: bool) -> None:
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, _, _ = _PEER.unpack(raw)
    if pid != peer and not (below and descends(Path("/proc"), pid, peer)):
        raise GpuckptError(
            f"process {pid} connected in place of CRIU ({peer}); hung up on it",
            hint="Name CRIU itself in GPUCKPT_CRIU, or let the wrapper become it (exec).",
        )


def _read_request(client: socket.socket) -> str | None:
    """Read one image name, None at the end of the conversation; never a byte too many.

    The descriptor travels with the single byte that follows, and a larger read would lose it.
    """
    head = _read_exactly(client, 4)
    if head is None:
        return None
    (length,) = struct.unpack("<I", head)
    if not SHORTEST_REQUEST <= length <= LONGEST_REQUEST:
        raise GpuckptError(f"CRIU sent a request of {length} bytes; this is no streaming protocol")
    body = _read_exactly(client, length)
    return None if body is None else _decode_request(body)


def _decode_request(body: bytes) -> str:
    """Decode img_streamer_request_entry: field 1, a string, and nothing else."""
    size, shift, at = 0, 0, 1
    while at < len(body):
        size |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
        if body[at - 1] < 0x80:  # noqa: PLR2004 - a varint's last byte has no top bit
            break
    if body[0] != 0x0A or at + size != len(body):  # noqa: PLR2004 - field 1, length-delimited
        raise GpuckptError("CRIU sent a request that is not img_streamer_request_entry")
    try:
        return body[at:].decode("ascii")
    except UnicodeDecodeError as why:
        raise GpuckptError("CRIU asked for an image whose name is not ASCII") from why


def _read_exactly(client: socket.socket, count: int) -> bytes | None:
    parts = b""
    while len(parts) < count:
        more = client.recv(count - len(parts))
        if not more:
            return None
        parts += more
    return parts


def _read_pipe(client: socket.socket) -> int:
    """Receive the one descriptor of a request and make sure that it is a pipe."""
    _, fds, _, _ = socket.recv_fds(client, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if len(fds) != 1:
        raise GpuckptError("CRIU sent no pipe with its request")
    if not stat.S_ISFIFO(os.fstat(fds[0]).st_mode):
        os.close(fds[0])
        raise GpuckptError("CRIU sent something that is not a pipe")
    return fds[0]


def _reply(*, exists: bool) -> bytes:
    """Encode img_streamer_reply_entry: field 1, a bool."""
    return struct.pack("<IBB", 2, 0x08, int(exists))
