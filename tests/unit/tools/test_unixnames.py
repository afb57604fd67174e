"""Who has the names of Unix sockets, tried on real sockets of this host."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools.net import Net
from gpuckpt.tools.unixnames import SocketName, moved

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {
    "stream": socket.SOCK_STREAM,
    "dgram": socket.SOCK_DGRAM,
    "seqpacket": socket.SOCK_SEQPACKET,
}
NAME = b"\0gpuckpt-test-%d" % os.getpid()
DRIVERS = b"\0cuda-uvmfd-4026531836-4711".ljust(108, b"\0")


def bound(kind: str, where: bytes) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, KINDS[kind])
    found.bind(where)
    if kind != "dgram":
        found.listen()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [b"", b"\0\0"])
def test_a_name_that_is_no_path_is_one_s_own(kind: str, padding: bytes) -> None:
    name, raw = SocketName(NAME + padding, kind), NAME + padding
    others = [SocketName(raw, one) for one in KINDS if one != kind] + [SocketName(raw[:-1], kind)]
    with closing(bound(kind, raw)):
        assert Net().unix_users([name, *others]) == {name: (os.getpid(),)}
    assert Net().unix_users([name]) == {}


def test_a_connection_does_not_hold_the_name_of_its_listener() -> None:
    name = SocketName(NAME, "stream")
    with closing(bound("stream", NAME)) as server:
        client = socket.socket(socket.AF_UNIX)
        client.connect(NAME)
        accepted, _ = server.accept()
    with client, accepted:
        assert Net().unix_users([name]) == {}


def test_a_path_is_had_by_who_is_bound_to_what_lies_there(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    raw = os.fsencode(path)
    name = SocketName(raw)
    with closing(bound("stream", raw)):
        assert Net().unix_users([name]) == {name: (os.getpid(),)}
        path.unlink()
        assert Net().unix_users([name]) == {}
        with closing(bound("dgram", raw)):
            assert Net().unix_users([name]) == {name: (os.getpid(),)}
        assert path.exists()
        assert Net().unix_users([name]) == {}
        path.unlink()
        path.touch()
        assert Net().unix_users([name]) == {}


def test_nothing_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuckpt.tools.unixnames.unix_sockets", None)
    assert Net().unix_users([]) == {}


def test_odd_names_of_a_forged_image_are_nobody_s() -> None:
    odd = [SocketName(b"\0" * 200, "stream"), SocketName(b"\0x", "raw"), SocketName(b"", "dgram")]
    assert Net().unix_users(odd) == {}


def test_the_driver_s_names_move_into_another_namespace() -> None:
    new = moved(DRIVERS, 4026532500)
    assert new == DRIVERS.replace(b"4026531836", b"4026532500")
    assert moved(new, 4026531836) == DRIVERS
    assert SocketName(DRIVERS).drivers
    assert SocketName(DRIVERS).words == "@cuda-uvmfd-4026531836-4711"


@pytest.mark.parametrize(
    "name",
    [b"\0cuda-uvmfd-1-4711", b"\0cuda-uvmfd-4026531836", b"\0my", b"/cuda-uvmfd-4026531836-1", b""],
)
def test_all_other_names_stay(name: bytes) -> None:
    assert moved(name, 4026532500) == name
    assert not SocketName(name).drivers
    assert moved(DRIVERS, 0) == DRIVERS
