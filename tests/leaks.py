"""What real tests may leave behind: processes, shared memory, packet filter tables of CRIU."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE = 5.0  # seconds for the last processes to go: init may be slow to reap them
_NETLINK_NETFILTER = 12
_GET_TABLE = 10 << 8 | 1  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST, NLM_F_DUMP
_TABLE_NAME = 1
_END = {2, 3}  # NLMSG_ERROR, NLMSG_DONE

BEFORE = pytest.StashKey[frozenset[str]]()
LEFT = pytest.StashKey[tuple[str, ...]]()


def look(mark: str) -> frozenset[str]:
    """Return what is there now, one line a thing; processes only if their environment has `mark`.

    CRIU brings an environment back with the memory, so that restored processes count too.
    """
    return frozenset((*_processes(mark), *_shared_memory(), *_criu_tables()))


def left(before: frozenset[str], mark: str) -> tuple[str, ...]:
    """Return what came and stayed, after a moment of grace."""
    deadline = time.monotonic() + GRACE
    while (more := look(mark) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return tuple(sorted(more))


def _processes(mark: str) -> list[str]:
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    lines = []
    for process in psutil.process_iter():
        try:
            if process.pid not in ours and mark in process.environ().values():
                lines.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        except psutil.Error:
            continue  # gone, or another user's
    return lines


def _shared_memory() -> list[str]:
    folder = Path("/dev/shm")
    return [str(path) for path in folder.iterdir()] if folder.is_dir() else []


def _criu_tables() -> list[str]:
    """Ask the kernel for its nftables tables: a dump with connected sockets locks them by one."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as asking:
            asking.settimeout(5)
            asking.send(struct.pack("=IHHIIBBH", 20, _GET_TABLE, _REQUEST_DUMP, 1, 0, 0, 0, 0))
            names = list(_table_names(asking))
    except OSError:
        return []  # no nftables in this kernel, or not root
    return [f"nft table {name}" for name in names if name.startswith(("CRIU", "gpuckpt-"))]


def _table_names(asking: socket.socket) -> Iterator[str]:
    while True:
        answer = asking.recv(1 << 16)
        while answer:
            length, kind = struct.unpack_from("=IH", answer)
            if kind in _END:
                return
            yield from _names(answer[20:length])
            answer = answer[_aligned(length) :]


def _names(attributes: bytes) -> Iterator[str]:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _TABLE_NAME:
            yield attributes[4:length].rstrip(b"\0").decode()
        attributes = attributes[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
