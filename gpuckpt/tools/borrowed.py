"""Descriptors of other processes, as copies of ours, to ask them what /proc does not tell."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from gpuckpt.tools.descriptors import Descriptor

_PIDFD_GETFD: Final = 438  # the same on every architecture
_NAMESPACE: Final = 71  # SO_NETNS_COOKIE, Linux 5.14
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def borrowed(pid: int, fds: Iterable[int]) -> Iterator[tuple[int, socket.socket]]:
    """Give a copy of each socket of a process that is still there, closed when the next is given.

    Raises:
        OSError: it may not be had.
    """
    with suppress(ProcessLookupError), _opened(pid) as pidfd:
        for fd in fds:
            one = _socket(pidfd, fd)
            if one is not None:
                with one:
                    yield fd, one


@contextmanager
def copied(pid: int, fd: int) -> Iterator[int]:
    """Give a copy of one descriptor of a process for a moment, whatever it is of.

    Raises:
        OSError: it may not be had, or there is no such process or descriptor.
    """
    with _opened(pid) as pidfd:
        copy = _copy(pidfd, fd)
    try:
        yield copy
    finally:
        os.close(copy)


def elsewhere(
    tree: Iterable[tuple[int, Sequence[Descriptor]]], known: Container[int]
) -> tuple[tuple[int, Descriptor], ...]:
    """Return the Internet sockets that are of another network namespace than ours.

    `known` are those of ours by inode. Where that cannot be asked there are none.
    """
    unknown = {
        fd.inode: (pid, fd)
        for pid, opened in tree
        for fd in opened
        if fd.protocol.startswith(("TCP", "UDP")) and fd.inode not in known
    }
    with suppress(OSError), socket.socket() as ours:
        here = _namespace(ours)
        return tuple(
            (pid, fd)
            for pid, fd in unknown.values()
            for namespace in _asked(pid, fd.fd)
            if namespace != here
        )
    return ()


def _asked(pid: int, fd: int) -> Iterator[bytes]:
    with suppress(OSError):
        for _, one in borrowed(pid, (fd,)):
            yield _namespace(one)


def _namespace(one: socket.socket) -> bytes:
    return one.getsockopt(socket.SOL_SOCKET, _NAMESPACE, 8)


def _socket(pidfd: int, fd: int) -> socket.socket | None:
    """Return a socket of another process, None if it has just been closed."""
    try:
        copy = _copy(pidfd, fd)
    except OSError as why:
        if why.errno in {errno.EBADF, errno.ESRCH}:
            return None
        raise
    try:
        return socket.socket(fileno=copy)
    except OSError as why:
        os.close(copy)
        if why.errno == errno.ENOTSOCK:  # closed, and the number given to something else
            return None
        raise


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _copy(pidfd: int, fd: int) -> int:
    copy = int(_LIBC.syscall(_PIDFD_GETFD, pidfd, fd, 0))
    if copy < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return copy
