"""TCP sockets as the kernel's sock_diag tells of them, those without an owner too, and their end.

A connection that was closed stays with the kernel for a while, for packets that come late
(TIME_WAIT), or until its other end has answered. Nobody has it, and its port is not free.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Final

from gpuckpt.tools import netlink
from gpuckpt.tools.addresses import plain
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.tools.addresses import Ends

FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING = 4, 5, 6, 9, 11
NAMES: Final = {
    FIN_WAIT1: "FIN_WAIT1",
    FIN_WAIT2: "FIN_WAIT2",
    TIME_WAIT: "TIME_WAIT",
    LAST_ACK: "LAST_ACK",
    CLOSING: "CLOSING",
}
_DESTROY: Final = 21  # <linux/sock_diag.h>
_TCP: Final = 6
_REQUEST: Final = struct.Struct("=BBBBI")  # struct inet_diag_req_v2, to its id
_ID: Final = struct.Struct("!HH16s16s12s")  # struct inet_diag_sockid: then interface and cookie
_ANSWER: Final = struct.Struct("=BBBB48s5I")  # struct inet_diag_msg
_FAMILIES: Final = (2, 10)
# listening and unconnected sockets are left out: 1 << state
_CONNECTED: Final = 0xFFF & ~(1 << 10 | 1 << 7)
# a kernel built without CONFIG_INET_DIAG_DESTROY, one before 6.0 for TIME_WAIT, and a user without
# CAP_NET_ADMIN
_CANNOT: Final = {errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL}


class Connection(Value, frozen=True):
    """One end of a connection of this host; `inode` is 0 if no process has it.

    `unsent` are bytes that the other end has not taken; `key` is how the kernel knows it.
    """

    ends: Ends
    state: int
    inode: int
    unsent: int
    key: tuple[int, bytes]

    @property
    def closed(self) -> bool:
        """Whether it is only remembered: nobody has it, and all that was sent has arrived."""
        # the end of a stream counts as a byte
        return self.inode == 0 and self.state in NAMES and self.unsent <= 1


def connections() -> Iterator[Connection]:
    """Go through all ends of TCP connections on this host.

    Raises:
        OSError: the kernel has no sock_diag.
    """
    for family in _FAMILIES:
        body = _REQUEST.pack(family, _TCP, 0, 0, _CONNECTED) + bytes(_ID.size)
        for answer in netlink.dump(netlink.SOCK_DIAG, netlink.BY_FAMILY, body):
            _, state, _, _, key, _, _, unsent, _, inode = _ANSWER.unpack_from(answer)
            near, far, here, there, _ = _ID.unpack(key)
            ends = (_address(family, here), near, _address(family, there), far)
            yield Connection(ends, state, inode, unsent, (family, key))


def destroy(one: Connection) -> bool:
    """Let the kernel forget a connection; False if it cannot.

    The key holds the kernel's cookie: another one with the same ends is not meant.

    Raises:
        OSError: the kernel refused for a reason of its own.
    """
    family, key = one.key
    body = _REQUEST.pack(family, _TCP, 0, 0, 1 << one.state) + key
    try:
        netlink.ask(netlink.SOCK_DIAG, [netlink.message(_DESTROY, netlink.ACK, body)])
    except FileNotFoundError:  # it has gone by itself
        return True
    except OSError as why:
        if why.errno in _CANNOT:
            return False
        raise
    return True


def _address(family: int, raw: bytes) -> str:
    return plain(raw[:4] if family == _FAMILIES[0] else raw)
