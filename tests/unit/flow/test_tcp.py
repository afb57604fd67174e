"""Where TCP connections lead: recorded ones, and real ones of every shape a kernel knows."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from gpuckpt.errors import DumpFailed
from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.sight.tcp import Where, policy, sort, still_inside, story
from gpuckpt.model import TcpPolicy
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.openfiles import Connection
from gpuckpt.tools.outside import Holder
from gpuckpt.tools.sockets import InetSocket
from tests.plan_samples import facts, process, task
from tests.targets import facts as real_facts
from tests.targets import findings, target, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.model import Finding

LISTENER = InetSocket(1, "127.0.0.1", 80, "0.0.0.0", 0, 10)  # noqa: S104 - nobody is connected
SERVER = InetSocket(2, "127.0.0.1", 80, "127.0.0.1", 999, 1, peer=3)
CLIENT = InetSocket(3, "127.0.0.1", 999, "127.0.0.1", 80, 1, peer=2)
UNBOUND = InetSocket(5, "0.0.0.0", 0, "0.0.0.0", 0, 7)  # noqa: S104 - not bound
INSIDE = (LISTENER, SERVER, CLIENT, UNBOUND)
ABROAD = InetSocket(4, "2001:db8::1", 5, "2001:db8::2", 6, 1)
WAITING = InetSocket(6, "127.0.0.1", 998, "127.0.0.1", 80, 1)


def known(*sockets: InetSocket, hosts: dict[int, Holder] | None = None) -> DumpFacts:
    """Return facts of a tree whose second process has these sockets."""
    opened = tuple(Descriptor(one.inode + 10, "s", "socket", inode=one.inode) for one in sockets)
    tasks = (task(process(100)), task(process(110, 100), descriptors=opened))
    return facts(look={"tasks": tasks, "tcp": sockets, "hosts": hosts or {}})


def judge(of: DumpFacts, tcp: TcpPolicy = TcpPolicy.NONE) -> list[Finding]:
    return list(judge_dump(of, DumpChoices(tcp=tcp)))


def test_connections_inside_the_tree_are_kept_unasked() -> None:
    assert judge(known(*INSIDE)) == []
    assert policy(INSIDE, TcpPolicy.NONE) is TcpPolicy.ESTABLISHED
    assert story(INSIDE).startswith("1 TCP connection with both ends in the tree: kept")
    assert policy((LISTENER, UNBOUND), TcpPolicy.NONE) is TcpPolicy.NONE
    assert policy(INSIDE, TcpPolicy.CLOSE) is TcpPolicy.CLOSE
    (warned,) = judge(known(*INSIDE), TcpPolicy.CLOSE)
    assert (warned.id, warned.blocks) == ("tcp-closed-inside", False)


def test_connections_that_lead_out_need_a_decision() -> None:
    """Only they are named, and their peers, if these can be seen."""
    local = InetSocket(7, "127.0.0.1", 997, "127.0.0.1", 22, 1, peer=99)
    tree = known(*INSIDE, ABROAD, local, hosts={99: Holder(7, "sshd")})
    abroad, near = judge(tree)
    assert {(one.id, one.blocks, one.pid) for one in (abroad, near)} == {
        ("tcp-connected", True, 110)
    }
    assert abroad.object == "fd 14 [2001:db8::1]:5 - [2001:db8::2]:6"
    assert "elsewhere" in abroad.reason
    assert "process 7 (sshd), outside the tree" in near.reason
    assert policy(tree.look.tcp, TcpPolicy.NONE) is TcpPolicy.NONE
    assert judge(tree, TcpPolicy.ESTABLISHED) == []


def test_an_address_of_one_link_is_lost_at_the_restore() -> None:
    """CRIU would dump it, and the job could not come back."""
    far = InetSocket(4, "fe80::1", 5, "fe80::2", 6, 1)
    (found,) = judge(known(far), TcpPolicy.ESTABLISHED)
    assert (found.id, found.blocks, found.pid) == ("tcp-link-local", True, 110)
    assert judge(known(far), TcpPolicy.CLOSE) == []
    near = (replace(far, remote="fe80::1", peer=5), replace(far, inode=5, peer=4))
    assert {one.id for one in judge(known(*near))} == {"tcp-link-local"}
    listener = replace(far, state=10, remote="::", remote_port=0)
    assert judge(known(listener)) == []


def test_what_nobody_has_accepted_yet() -> None:
    """One of the job's own would be reset; it is told once, not at both ends."""
    listener = replace(LISTENER, waiting=1)
    (own,) = judge(known(listener, WAITING))
    assert (own.id, own.blocks, own.object) == (
        "tcp-waiting",
        True,
        "fd 16 127.0.0.1:998 - 127.0.0.1:80",
    )
    assert policy((listener, SERVER, CLIENT, WAITING), TcpPolicy.NONE) is TcpPolicy.NONE
    (warned,) = judge(known(listener, WAITING), TcpPolicy.ESTABLISHED)
    assert not warned.blocks
    own, other = judge(known(replace(LISTENER, waiting=2), WAITING))
    assert (own.pid, other.object) == (110, "fd 11 127.0.0.1:80")
    # the port of the same number on another host is somebody else's
    every = replace(LISTENER, local="0.0.0.0")  # noqa: S104 - a listener
    far = replace(WAITING, local="192.0.2.1", remote="192.0.2.9")
    assert sort((every, far)) == {far: Where.OUTSIDE}
    assert sort((every, WAITING)) == {WAITING: Where.WAITING}


def test_an_end_that_nobody_has_any_more() -> None:
    """CLOSE_WAIT on this host, and no socket at the other end; abroad one may only wait."""
    left = replace(SERVER, state=8, peer=0)
    assert sort((LISTENER, left)) == {left: Where.ABANDONED}
    assert judge(known(LISTENER, left)) == []
    assert "1 TCP connection that nobody has the other end of" in story((left,))
    assert sort((replace(ABROAD, state=8),)) == {replace(ABROAD, state=8): Where.OUTSIDE}


def test_a_connection_that_was_made_after_the_look() -> None:
    pair = (Connection("::1", 1, "::1", 2), Connection("::1", 2, "::1", 1, closing=True))
    still_inside((*pair, Connection("127.0.0.1", 5, "127.0.0.2", 6, closing=True)))
    with pytest.raises(DumpFailed, match=r"has just connected to 192\.0\.2\.9:6"):
        still_inside((*pair, Connection("192.0.2.1", 5, "192.0.2.9", 6, closing=True)))


SHAPES: Final = """
import os, socket
def pair(family, host, shown=None):
    s = socket.socket(family); s.bind((host, 0)); s.listen()
    c = socket.create_connection((shown or host, s.getsockname()[1]))
    return s, c, s.accept()[0]
kept = [pair(socket.AF_INET, '127.0.0.1'), pair(socket.AF_INET6, '::1')]
mapped = pair(socket.AF_INET6, '::', '127.0.0.1')
half = pair(socket.AF_INET, '127.0.0.1'); half[1].shutdown(socket.SHUT_WR)
gone = pair(socket.AF_INET, '127.0.0.1'); gone[1].close()
if os.fork() == 0: half[2].close()  # the parent has it still
"""


def test_real_connections_inside_the_tree(tmp_path: Path) -> None:
    """Of both families, mapped ones, half closed ones, those of two processes."""
    with target(tmp_path, SHAPES) as pid:
        wait_until(lambda: len(real_facts(pid).look.tasks) > 1)
        sockets = real_facts(pid).look.tcp
        found = sort(sockets)
        assert {one.state for one in found} >= {1, 8}
        assert set(found.values()) == {Where.INSIDE, Where.ABANDONED}
        assert sum(one is Where.INSIDE for one in found.values()) == 8
        assert findings(pid) == ()
        assert policy(sockets, TcpPolicy.NONE) is TcpPolicy.ESTABLISHED


def test_real_connections_that_are_half_inside(tmp_path: Path) -> None:
    """One of two processes that hold it is outside: then the peer is, or the socket is shared."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; c = socket.create_connection(('127.0.0.1', {port}))"
        with target(tmp_path, code + SHAPES) as pid:
            (found,) = findings(pid)  # nobody has accepted it: there is no process to name
            assert (found.id, found.reason.endswith("elsewhere.")) == ("tcp-connected", True)
            with server.accept()[0]:
                (found,) = findings(pid)
                assert f"process {os.getpid()} " in found.reason
    ours = socket.create_server(("127.0.0.1", 0))
    with ours, socket.create_connection(ours.getsockname()) as client, ours.accept()[0] as end:
        both = (client.fileno(), end.fileno())
        with target(tmp_path, "", pass_fds=both) as pid:
            assert {one.id for one in findings(pid)} == {"socket-shared"}


def test_real_connections_that_wait(tmp_path: Path) -> None:
    """The backlog is full as well: one cannot even be opened."""
    code = (
        "import socket\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(0)\n"
        "c = [socket.socket() for _ in range(3)]\n"
        "for one in c: one.setblocking(False); one.connect_ex(s.getsockname())\n"
    )
    with target(tmp_path, code) as pid:
        found = findings(pid)
        assert [(one.id, one.blocks) for one in found] == [("tcp-waiting", True)] * 3
        assert {one.state for one in real_facts(pid).look.tcp} >= {1, 2}
