"""Packet filters and closed connections of a real kernel: what is held, and what is forgotten."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from gpuckpt.tools import diag
from gpuckpt.tools.net import Net, PortState

pytestmark = pytest.mark.root

NAME = f"gpuckpt-test-{os.getpid()}"
HOSTS = [
    (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
    (socket.AF_INET6, "::1", "::1"),
    (socket.AF_INET6, "::", "127.0.0.1"),
]


def pair(family: int, host: str, to: str) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Return a listener without SO_REUSEADDR, and both ends of a connection to it."""
    server = socket.socket(family)
    server.bind((host, 0))
    server.listen()
    client = socket.create_connection((to, server.getsockname()[1]))
    return server, client, server.accept()[0]


def test_held_connections_lose_nothing() -> None:
    """Only they are silent, and what was sent meanwhile arrives afterwards."""
    net, pairs = Net(), [pair(*one) for one in HOSTS]
    ends = [(*one.getsockname()[:2], *one.getpeername()[:2]) for _, one, _ in pairs]
    many = [("192.0.2.1", port, "192.0.2.2", port) for port in range(1, 2000)]
    net.hold(NAME, [*ends, *many])
    try:
        assert net.held(NAME)
        with pytest.raises(FileExistsError):
            net.hold(NAME, ends)
        for server, client, other in pairs:
            client.sendall(b"held")
            other.settimeout(0.1)
            with pytest.raises(TimeoutError):
                other.recv(4)
            with socket.create_connection(client.getpeername()[:2]), server.accept()[0]:
                pass
    finally:
        net.release(NAME)
    net.release(NAME)
    assert not net.held(NAME)
    for server, client, other in pairs:
        with server, client, other:
            other.settimeout(20)
            assert other.recv(4) == b"held"


@pytest.mark.parametrize(("family", "host", "to"), HOSTS)
def test_closed_connections_are_forgotten(family: int, host: str, to: str) -> None:
    """In TIME_WAIT, and those whose other end is still there; what somebody has stays."""
    net = Net()
    for closes_too in (True, False):
        server, client, other = pair(family, host, to)
        with client, closing(server):
            port = server.getsockname()[1]
            place = {(host, port)}
            assert net.remains(place, ()) == ()
            other.close()
            client.recv(1)
            if closes_too:
                client.close()
            server.close()
            (left,) = net.remains(place, ())
            assert (
                net.remains({("192.0.2.1" if ":" not in host else "2001:db8::1", port)}, ()) == ()
            )
            assert net.port("tcp", host, port, dual=host == "::") is PortState.LINGERING
            assert net.forget(left)
            assert net.forget(left), "what is gone already is no trouble"
            assert net.port("tcp", host, port, dual=host == "::") is PortState.FREE


def test_what_somebody_has_is_not_touched() -> None:
    net = Net()
    server, client, other = pair(*HOSTS[0])
    with server, client, other:
        ends = (*client.getsockname(), *client.getpeername())
        (found,) = net.remains((), {ends})
        assert found.inode == os.fstat(client.fileno()).st_ino
        assert not net.forget(found)
        client.sendall(b"alive")
        assert other.recv(5) == b"alive"
        assert found.state not in diag.NAMES
