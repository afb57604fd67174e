"""Ends of sockets that are somewhere else a moment later."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from gpuckpt.tools.descriptors import descriptors
from gpuckpt.tools.outside import Holder, outside


def test_a_connection_that_was_made_or_closed_meanwhile() -> None:
    """A busy server has some at any moment, and nobody outside has to do with them."""
    ours, theirs = socket.socketpair()
    me = os.getpid()
    opened = {fd.fd: fd for fd in descriptors(Path("/proc/self"))}
    one = opened[ours.fileno()]
    with ours:
        # the other end was not there when the descriptors were listed
        assert outside(Path("/proc"), [(me, [one])], {}).peers == ()
        theirs.close()
        assert outside(Path("/proc"), [(me, [one])], {}).peers == ()
    assert outside(Path("/proc"), [(me, [one])], {}).peers == ()


def test_an_end_that_really_is_outside() -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        theirs.close()
        ours.send(b".")
        os.read(ours.fileno(), 1)
        os._exit(0)
    theirs.recv(1)  # until then the child has both ends
    number = ours.fileno()
    ours.close()
    try:
        its = [fd for fd in descriptors(Path(f"/proc/{child}")) if fd.fd == number]
        (peer,) = outside(Path("/proc"), [(child, its)], {os.getpid(): "parent"}).peers
        assert (peer.fd, peer.holder) == (number, Holder(os.getpid(), "parent"))
    finally:
        theirs.close()
        os.waitpid(child, 0)
