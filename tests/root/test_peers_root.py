"""Connections of real processes to others, and that CRIU says the same of them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import TcpPolicy
from tests.root.harness import Field, criu_dumps, mounted
from tests.targets import facts, findings, target, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.root

LISTEN = """
import socket
s = socket.create_server(('127.0.0.1', 0))
open('port', 'w').write(str(s.getsockname()[1]))
"""


def test_a_client_that_nobody_has_accepted(tmp_path: Path) -> None:
    with target(tmp_path, LISTEN) as pid:
        assert findings(pid) == ()
        port = int((tmp_path / "port").read_text())
        with socket.create_connection(("127.0.0.1", port)):
            (found,) = findings(pid)
            assert (found.id, found.blocks) == ("tcp-waiting", True)
            assert found.object.endswith(f"127.0.0.1:{port}")
            assert not criu_dumps(facts(pid), tmp_path / "images")
            (found,) = findings(pid, tcp=TcpPolicy.CLOSE)
            assert (found.id, found.blocks) == ("tcp-waiting", False)


def test_a_local_peer_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; c = socket.create_connection(('127.0.0.1', {port}))"
        with target(tmp_path, code) as pid:
            (found,) = findings(pid)
            # nobody has accepted it yet: there is no process to name
            assert "whose peer is elsewhere" in found.reason
            with server.accept()[0]:
                (found,) = findings(pid)
                assert found.id == "tcp-connected"
                assert f"process {os.getpid()} " in found.reason


def test_a_socket_that_somebody_outside_has_too(tmp_path: Path) -> None:
    """As with socket activation: the port stays taken when the job is gone."""
    server = socket.create_server(("127.0.0.1", 0))
    number = server.fileno()
    with server, target(tmp_path, "", pass_fds=(number,)) as pid:
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("socket-shared", True)
        assert found.object.startswith(f"fd {number} socket:[")
        assert f"process {os.getpid()} " in found.reason
        server.close()
        assert findings(pid) == ()


@pytest.fixture
def log_server(tmp_path: Path) -> Iterator[socket.socket]:
    """Give a server that takes datagrams by its name, as the system log does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log"))
        server.settimeout(20)
        yield server


def test_a_datagram_socket_finds_its_server_again(
    place: Field, tmp_path: Path, log_server: socket.socket
) -> None:
    """As every job that writes to the system log has it."""
    code = (
        "import os, socket, time\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        f"s.connect({log_server.getsockname()!r})\n"
        "print('ready', flush=True)\n"
        "while True: s.send(b'on'); time.sleep(0.05)\n"
    )
    with target(tmp_path, code) as pid:
        (warned,) = findings(pid)
        assert (warned.id, warned.blocks) == ("unix-server", False)
        assert f"process {os.getpid()} " in warned.reason
        image = tmp_path / "image"
        place.gpuckpt("dump", pid, "-o", image).result  # noqa: B018 - fails if it did
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    log_server.settimeout(0)
    with suppress(BlockingIOError):
        while log_server.recv(16):
            pass
    (tmp_path / "log").rename(tmp_path / "away")
    answer = place.gpuckpt("restore", image)
    assert answer.code == 8, answer.stdout
    (found,) = answer.json["error"]["findings"]
    assert (found["id"], found["object"]) == ("server-missing", str(tmp_path / "log"))
    (tmp_path / "away").rename(tmp_path / "log")
    assert place.restore(image) == pid
    log_server.settimeout(20)
    assert log_server.recv(16) == b"on"


def test_messages_of_the_kernel_that_were_not_read(tmp_path: Path) -> None:
    code = (
        "import socket, struct\n"
        "s = socket.socket(16, 3, 0); s.bind((0, 0))\n"
        "s.send(struct.pack('IHHIIB3x', 20, 18, 0x301, 1, 0, 0))  # RTM_GETLINK\n"
    )
    with target(tmp_path, code) as pid:
        wait_until(lambda: findings(pid))
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("netlink-unread", True)
        assert not criu_dumps(facts(pid), tmp_path / "images")


def test_descriptors_on_their_way(tmp_path: Path) -> None:
    code = (
        "import os, socket\n"
        "a, b = socket.socketpair(); c, d = socket.socketpair()\n"
        "socket.send_fds(a, [b'x'], [c.fileno()]); c.close()\n"
    )
    with target(tmp_path, code) as pid:
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("descriptors-in-flight", False)
        assert criu_dumps(facts(pid), tmp_path / "images")


def test_a_client_that_waits_at_a_unix_socket(tmp_path: Path) -> None:
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('L'); s.listen()"
    with target(tmp_path, code) as pid, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "L"))
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("unix-waiting", False)
        assert f"process {os.getpid()} " in found.reason
        assert criu_dumps(facts(pid), tmp_path / "images")


PROBED = """
import ctypes, mmap
with open('code', 'r+b') as f:
    area = mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
at = int(next(one for one in open('/proc/self/maps') if one.endswith('/code\\n')).split('-')[0], 16)
ctypes.CFUNCTYPE(ctypes.c_int)(at)()
"""


def test_a_process_that_was_probed(tmp_path: Path) -> None:
    # mov $1, %eax; ret
    (tmp_path / "code").write_bytes(bytes.fromhex("b801000000c3").ljust(4096, b"\0"))
    name = f"gpuckpt_test_{os.getpid()}"
    with mounted(tmp_path / "tracing", "tracefs") as tracing:
        switch = tracing / f"events/uprobes/{name}/enable"
        try:
            append(tracing / "uprobe_events", f"p:{name} {tmp_path}/code:0x0\n")
            switch.write_text("1")
        except OSError as why:
            pytest.skip(f"no probes here: {why}")
        try:
            with target(tmp_path, PROBED) as pid:
                (found,) = findings(pid)
                assert (found.id, found.blocks) == ("uprobes", True)
                assert not criu_dumps(facts(pid), tmp_path / "images")
        finally:
            switch.write_text("0")
            append(tracing / "uprobe_events", f"-:{name}\n")


def append(file: Path, line: str) -> None:
    """Write without O_TRUNC, which would remove everybody's probes."""
    stream = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.write(stream, line.encode())
    os.close(stream)


ELSEWHERE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
home = os.open('/proc/self/ns/net', os.O_RDONLY)
assert libc.unshare(0x40000000) == 0
listening = socket.socket(); listening.bind(('0.0.0.0', 0)); listening.listen()
fresh, other = socket.socket(), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
assert libc.setns(home, 0) == 0
os.close(home)
own = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
"""


def test_sockets_of_another_network_namespace(tmp_path: Path) -> None:
    with target(tmp_path, ELSEWHERE) as pid:
        found = findings(pid)
        assert [(one.id, one.blocks, one.pid) for one in found] == [
            ("socket-namespace", True, pid)
        ] * 3
        assert not criu_dumps(facts(pid), tmp_path / "images")
