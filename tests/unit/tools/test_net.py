"""Whether a port could be bound again, tried on real sockets of this host."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from gpuckpt.tools.net import Net, PortState

HOST = "127.0.0.1"


def listener(*, reuse: bool) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    found.bind((HOST, 0))
    found.listen()
    return found


def left_lingering(*, reuse: bool) -> int:
    """Return the port of a listener that is gone, with a connection of it in TIME_WAIT."""
    with closing(listener(reuse=reuse)) as server:
        port = int(server.getsockname()[1])
        with socket.create_connection((HOST, port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # who closes first has to linger
            client.recv(1)
    return port


@pytest.mark.parametrize("reuse", [False, True])
def test_a_listener_holds_its_port(*, reuse: bool) -> None:
    with closing(listener(reuse=reuse)) as server:
        assert Net().port("tcp", HOST, server.getsockname()[1]) is PortState.TAKEN


def test_closed_connections_of_a_server_that_allows_it_are_in_nobodys_way() -> None:
    assert Net().port("tcp", HOST, left_lingering(reuse=True)) is PortState.FREE


def test_closed_connections_of_another_server_have_to_be_waited_for() -> None:
    assert Net().port("tcp", HOST, left_lingering(reuse=False)) is PortState.LINGERING


def test_a_connection_that_a_process_still_has_is_not_waited_for() -> None:
    with closing(listener(reuse=False)) as server:
        port = int(server.getsockname()[1])
        client = socket.create_connection((HOST, port))
        accepted, _ = server.accept()
    with client, accepted:
        assert Net().port("tcp", HOST, port) is PortState.TAKEN


@pytest.mark.parametrize("reuse", [False, True])
def test_udp_is_never_shared(*, reuse: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        other.bind((HOST, 0))
        assert Net().port("udp", HOST, other.getsockname()[1]) is PortState.TAKEN


def test_who_has_a_port_and_addresses_that_are_not_here() -> None:
    """Listening and connected sockets are told apart."""
    net = Net()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert os.getpid() in net.holders("tcp", port)
        assert os.getpid() in net.holders("tcp", port, listening=True)
        with socket.create_connection(("127.0.0.1", port)) as client:
            own = client.getsockname()[1]
            assert os.getpid() in net.holders("tcp", own)
            assert net.holders("tcp", own, listening=True) == ()
    # reserved for documentation (RFC 5737, RFC 3849)
    assert net.port("tcp", "203.0.113.1", 0) is PortState.NO_ADDRESS
    assert net.port("tcp", "2001:db8::1", 0) in {PortState.NO_ADDRESS, PortState.TAKEN}
