"""Whether a port could be bound again, tried on real sockets of this host."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from gpuckpt.tools.addresses import scopes
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


def test_who_has_the_port_at_another_address_is_not_in_the_way() -> None:
    port = left_lingering(reuse=False)
    with socket.create_server(("127.0.0.2", port)):
        assert Net().port("tcp", HOST, port) is PortState.LINGERING
        assert Net().holders("tcp", port, HOST) == ()
        assert Net().port("tcp", "127.0.0.2", port) is PortState.TAKEN
        assert os.getpid() in Net().holders("tcp", port, "0.0.0.0")  # noqa: S104 - nobody binds


def test_an_address_that_counts_on_one_link_only_is_tried_there(tmp_path: Path) -> None:
    """A bind without its interface fails always: the port would seem taken for ever."""
    (tmp_path / "net").mkdir()
    table = tmp_path / "net" / "if_inet6"
    loopback = f"{socket.if_nametoindex('lo'):02x}"
    table.write_text(f"fe80{'0' * 27}9 {loopback} 40 20 80       lo\n")
    assert scopes("fe80::9", tmp_path) == (socket.if_nametoindex("lo"),)
    assert scopes("::1", tmp_path) == (0,)
    net = Net(tmp_path)
    assert net.port("tcp", "fe80::8", 0) is PortState.NO_ADDRESS
    assert net.port("tcp", "fe80::9", 0) is PortState.NO_ADDRESS, "the table is no real one"
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        address = str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))
        assert Net().port("tcp", address, 0) is PortState.FREE


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
