"""Netlink: messages to the kernel and its answers, packed and unpacked, whatever they are about."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUEST, ACK, DUMP, CREATE, EXCLUSIVE = 0x1, 0x4, 0x300, 0x400, 0x200
# the protocol that tells of sockets, and what it is asked for most
SOCK_DIAG, BY_FAMILY = 4, 20  # <linux/netlink.h>, <linux/sock_diag.h>
_ERROR, _DONE = 2, 3
_NESTED: Final = 0x8000
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE: Final = struct.Struct("=HH")  # struct nlattr
_PATIENCE: Final = 10.0  # seconds; the kernel answers in milliseconds or not at all


def message(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    """Return one message."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags | REQUEST, sequence, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute."""
    head = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind)
    return head + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that is made of attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Go through attributes, the kind of each and its value."""
    at = 0
    while at + _ATTRIBUTE.size <= len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, at)
        yield kind & ~_NESTED, raw[at + _ATTRIBUTE.size : at + size]
        at += _aligned(max(size, _ATTRIBUTE.size))


def dump(protocol: int, kind: int, body: bytes) -> Iterator[bytes]:
    """Ask for a list and go through the bodies of the answers.

    Raises:
        OSError: the kernel has no such list, or not for us.
    """
    with _kernel(protocol) as kernel:
        kernel.send(message(kind, DUMP, body))
        for answered, _, payload in _answers(kernel):
            if answered == _DONE:
                return
            if answered == _ERROR:
                raise _refused(payload)
            yield payload


def ask(protocol: int, messages: Iterable[bytes], last: int = 1) -> None:
    """Send messages as one and wait until that numbered `last` is answered.

    Raises:
        OSError: the kernel refused one of them.
    """
    with _kernel(protocol) as kernel:
        kernel.send(b"".join(messages))
        failed: OSError | None = None
        for kind, sequence, payload in _answers(kernel):
            if kind == _ERROR:
                failed = failed or _failure(payload)
                if failed or sequence == last:
                    break
        if failed:
            raise failed


def _kernel(protocol: int) -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    kernel.settimeout(_PATIENCE)
    kernel.bind((0, 0))
    return kernel


def _answers(kernel: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Read kind, number and body of each answer, without an end."""
    while True:
        raw = kernel.recv(1 << 20)
        at = 0
        while at + _HEADER.size <= len(raw):
            size, kind, _, sequence, _ = _HEADER.unpack_from(raw, at)
            yield kind, sequence, raw[at + _HEADER.size : at + size]
            at += _aligned(max(size, _HEADER.size))


def _failure(payload: bytes) -> OSError | None:
    """Read struct nlmsgerr: the negated error number comes first, 0 is a yes."""
    (number,) = struct.unpack_from("=i", payload)
    return OSError(-number, os.strerror(-number)) if number else None


def _refused(payload: bytes) -> OSError:
    return _failure(payload) or OSError("the kernel's answer makes no sense")


def _aligned(size: int) -> int:
    return (size + 3) & ~3
