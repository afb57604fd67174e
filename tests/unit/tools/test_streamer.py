"""The streaming protocol, spoken to by a client as CRIU speaks it."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import DumpFailed, GpuckptError, ImageDamaged
from gpuckpt.tools import streamer
from gpuckpt.tools.streamer import CAPTURE_SOCKET, LAST_IMAGE, SERVE_SOCKET, Capture, Serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 20.0
Connect = "Callable[[str], Client]"


class Client:
    """CRIU's side of the conversation."""

    def __init__(self, folder: Path, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(folder / name))

    def request(self, name: str) -> None:
        body = b"\x0a" + bytes([len(name)]) + name.encode()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def hand_over(self, fd: int) -> None:
        socket.send_fds(self.socket, [b"\0"], [fd])
        os.close(fd)

    def put(self, name: str, data: bytes) -> None:
        read, write = os.pipe()
        self.request(name)
        self.hand_over(read)
        with suppress(BrokenPipeError), os.fdopen(write, "wb") as pipe:
            pipe.write(data)

    def get(self, name: str) -> bytes | None:
        self.request(name)
        if self.socket.recv(6) != b"\x02\0\0\0\x08\x01":
            return None
        read, write = os.pipe()
        self.hand_over(write)
        with os.fdopen(read, "rb") as pipe:
            return pipe.read()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[str], Client]]:
    """Give a way to connect that is hung up in the end."""
    made: list[Client] = []

    def to(name: str) -> Client:
        made.append(Client(tmp_path, name))
        return made[-1]

    yield to
    for client in made:
        client.socket.close()


def test_capture_takes_many_images_at_once(tmp_path: Path, connect: Connect) -> None:
    """Early images stay open while others come and go; all arrive whole."""
    got: dict[str, bytes] = {}
    with closing(Capture(tmp_path, lambda name, fd: got.update({name: _all(fd)}))) as capture:
        capture.start(os.getpid())
        client = connect(CAPTURE_SOCKET)
        read, write = os.pipe()
        client.request("files.img")
        client.hand_over(read)
        for number in range(20):
            client.put(f"core-{number}.img", b"%d" % number * 1000)
        os.write(write, b"late")
        os.close(write)
        client.put(LAST_IMAGE, b"the end")
        capture.drain()
    assert got.pop("files.img") == b"late"
    assert got.pop(LAST_IMAGE) == b"the end"
    assert got == {f"core-{number}.img": b"%d" % number * 1000 for number in range(20)}
    assert not list(tmp_path.iterdir()), "the socket was left"


def _all(fd: int) -> bytes:
    parts = b""
    while more := os.read(fd, 1 << 16):
        parts += more
    return parts


def test_a_store_that_fails_ends_the_conversation(tmp_path: Path, connect: Connect) -> None:
    """The first failure is kept, told through `fd`, and CRIU sees a broken pipe."""

    def store(name: str, _fd: int) -> None:
        raise DumpFailed(f"no room for {name}")

    with closing(Capture(tmp_path, store)) as capture:
        capture.start(os.getpid())
        client = connect(CAPTURE_SOCKET)
        client.put("pages-1.img", b"x" * (1 << 20))
        assert select.select([capture.fd], [], [], PATIENCE)[0]
        assert client.socket.recv(1) == b"", "the server must hang up"
        with pytest.raises(DumpFailed, match="no room for pages-1"):
            capture.drain()


def test_capture_without_the_last_image_is_no_dump(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CRIU that died early closes its socket just as one that is done."""
    monkeypatch.setattr(streamer, "LAST_REQUEST_PATIENCE", 0.2)
    with closing(Capture(tmp_path, lambda _name, fd: _all(fd) and None)) as capture:
        capture.start(os.getpid())
        client = connect(CAPTURE_SOCKET)
        client.put("files.img", b"x")
        client.socket.close()
        with pytest.raises(DumpFailed, match=LAST_IMAGE):
            capture.drain()


def test_serve_answers_what_it_has(tmp_path: Path, connect: Connect) -> None:
    """Images that are not there are answered with no, the others arrive whole."""
    store = {"core-1.img": b"core", "pages-1.img": os.urandom(3 << 20)}
    with closing(_serve(tmp_path, store)) as serve:
        serve.start(os.getpid())
        client = connect(SERVE_SOCKET)
        assert client.get("memfd.img") is None
        assert client.get("pages-1.img") == store["pages-1.img"]
        assert client.get("core-1.img") == b"core"
        serve.drain()


def _serve(folder: Path, store: dict[str, bytes]) -> Serve:
    def send(name: str, fd: int) -> None:
        view = memoryview(store[name])
        while view:
            view = view[os.write(fd, view) :]

    return Serve(folder, store.__contains__, send)


def test_a_damaged_image_ends_the_restore(tmp_path: Path, connect: Connect) -> None:
    """What `send` raises is raised again by `drain`, and CRIU gets no more."""

    def send(name: str, _fd: int) -> None:
        raise ImageDamaged(f"{name} is damaged")

    with closing(Serve(tmp_path, lambda _name: True, send)) as serve:
        serve.start(os.getpid())
        client = connect(SERVE_SOCKET)
        assert client.get("pages-1.img") == b""
        assert client.socket.recv(1) == b""
        with pytest.raises(ImageDamaged):
            serve.drain()


def test_a_client_that_has_enough_is_no_failure(tmp_path: Path, connect: Connect) -> None:
    """CRIU closes small images when it has read what it wants."""
    started = threading.Event()

    def send(_name: str, fd: int) -> None:
        started.set()
        while True:
            os.write(fd, bytes(1 << 16))

    with closing(Serve(tmp_path, lambda _name: True, send)) as serve:
        serve.start(os.getpid())
        client = connect(SERVE_SOCKET)
        client.request("core-1.img")
        client.socket.recv(6)
        read, write = os.pipe()
        client.hand_over(write)
        assert started.wait(PATIENCE)
        os.close(read)
        serve.drain()
        assert serve.failure is None


def test_a_stranger_is_hung_up_on(tmp_path: Path, connect: Connect) -> None:
    """Whoever connects gets the job's memory, so only CRIU may."""
    with closing(_serve(tmp_path, {"core-1.img": b"secret"})) as serve:
        serve.start(os.getppid())
        client = connect(SERVE_SOCKET)
        with suppress(OSError):
            assert client.get("core-1.img") is None
        assert select.select([serve.fd], [], [], PATIENCE)[0]
        with pytest.raises(GpuckptError, match="in place of CRIU"):
            serve.drain()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", 1 << 30),
        struct.pack("<I", 0),
        struct.pack("<I", 4) + b"\x12\x02ab",
        struct.pack("<I", 4) + b"\x0a\x09ab",
        struct.pack("<I", 4) + b"\x0a\x02\xff\xfe",
    ],
    ids=["huge", "empty", "wrong-field", "wrong-length", "not-ascii"],
)
def test_nonsense_is_refused(tmp_path: Path, connect: Connect, sent: bytes) -> None:
    """A request that is not the protocol's ends the conversation; nothing is allocated for it."""
    with closing(_serve(tmp_path, {})) as serve:
        serve.start(os.getpid())
        client = connect(SERVE_SOCKET)
        client.socket.sendall(sent)
        assert client.socket.recv(1) == b""
        with pytest.raises(GpuckptError):
            serve.drain()


def test_what_is_no_pipe_is_refused(tmp_path: Path, connect: Connect) -> None:
    """A descriptor that is not a pipe is never read from."""
    asked: list[str] = []
    capture = Capture(tmp_path, lambda name, _fd: asked.append(name))
    with closing(capture):
        capture.start(os.getpid())
        client = connect(CAPTURE_SOCKET)
        client.request("files.img")
        client.hand_over(os.open(os.devnull, os.O_RDONLY))
        assert client.socket.recv(1) == b""
        with pytest.raises(GpuckptError, match="not a pipe"):
            capture.drain()
    assert not asked


def test_close_wakes_one_who_never_came(tmp_path: Path) -> None:
    """A CRIU that never connects leaves no thread and no socket behind."""
    before = threading.active_count()
    with closing(Capture(tmp_path, lambda _name, _fd: None)) as capture:
        capture.start(os.getpid())
    assert threading.active_count() == before
    assert not list(tmp_path.iterdir())
