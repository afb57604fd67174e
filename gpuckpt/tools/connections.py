"""What a CRIU that was ended in mid-dump leaves on the TCP connections of a job, and its end.

For the time of a dump CRIU (4.2.1) drops their packets by an nftables table of its own and puts the
sockets into repair mode, in which nothing is sent. It takes both back when it fails; when it is
killed, the job runs on with connections that are silently dead.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools import filters
from gpuckpt.tools.borrowed import borrowed
from gpuckpt.tools.procfs import link, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_RUN: Final = re.compile(rb"CRIU run id = ([0-9A-Za-z-]+)")
_TOUCHED: Final = b"Turning repair on for socket"
# 4.2.1 names its table after its run, and has room for so much of that
_RUN_IN_NAME: Final = 21
_TCP_REPAIR: Final = 19  # <linux/tcp.h>


def free(pids: Iterable[int], log: Path) -> None:
    """Let the connections of the processes flow again; `log` is that of the CRIU that ended.

    Nothing happens where CRIU has put everything back itself.

    Raises:
        OSError: the kernel refused.
    """
    tables, touched = _read(log)
    for table in tables:
        with suppress(FileNotFoundError):
            filters.delete(table)
    for pid in pids if touched else ():
        _leave_repair(pid)


def cut(pids: Iterable[int], log: Path) -> tuple[str, ...]:
    """Say what `free` would have to undo, one line a thing; nothing is changed.

    Raises:
        OSError: the kernel refused to tell.
    """
    tables, touched = _read(log)
    held = [pid for pid in pids if any(_repairing(pid))] if touched else []
    return (
        *(f"packet filter table {table}" for table in tables),
        *(f"TCP connections of process {pid}" for pid in held),
    )


def _read(log: Path) -> tuple[list[str], bool]:
    """Return CRIU's tables that are there, and whether it came to any connection.

    It makes one even where there is none to be held.
    """
    run, touched = "", False
    if log.exists():
        with log.open("rb") as file:
            for line in file:
                if found := _RUN.search(line):
                    run = found[1].decode()
                touched = touched or _TOUCHED in line
    mine = {f"{filters.CRIU}{run[:_RUN_IN_NAME]}", f"{filters.CRIU}{run}"} if run else set()
    return [table for table in filters.tables(filters.CRIU) if table in mine], touched


def _leave_repair(pid: int) -> None:
    """Take every TCP socket of a process out of repair mode; one that is gone has none."""
    for one in _repairing(pid):
        one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)


def _repairing(pid: int) -> Iterator[socket.socket]:
    """Go through the TCP sockets of a process that are in repair mode, as copies of ours."""
    fds = (fd for fd in numbers(f"/proc/{pid}/fd") if _is_socket(pid, fd))
    yield from (one for _, one in borrowed(pid, fds) if _in_repair(one))


def _is_socket(pid: int, fd: int) -> bool:
    return (link(f"/proc/{pid}/fd/{fd}") or "").startswith("socket:")


def _in_repair(one: socket.socket) -> bool:
    if one.family not in {socket.AF_INET, socket.AF_INET6} or one.proto != socket.IPPROTO_TCP:
        return False
    return one.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR) != 0
