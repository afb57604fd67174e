"""How files under /proc are read: a process that goes away in between is nothing unusual.

Paths and names are turned into text that can always be printed and encoded: bytes that are not
UTF-8 become backslash escapes. Nobody opens a file by such a text.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

GONE: Final = (FileNotFoundError, ProcessLookupError, NotADirectoryError)
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD in <linux/sched.h>
_PIECE: Final = 1 << 16
_EXITING: Final = 0x00000004  # PF_EXITING


class Stat(Value, frozen=True):
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    sid: int
    tty: int
    kernel_thread: bool
    exiting: bool
    start_time: int


def text(raw: bytes) -> str:
    """Return printable text for whatever bytes the kernel gave."""
    return raw.decode("utf-8", "backslashreplace")


def read(path: Path | str) -> bytes | None:
    """Return a file's content, None if it or its process is gone.

    By bare calls: a look reads every process of the host, and a file object costs twice as much.
    """
    parts = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(fd, _PIECE):
                parts.append(part)
        finally:
            os.close(fd)
    except GONE:
        return None
    return b"".join(parts)


def lines(raw: bytes) -> list[bytes]:
    """Return the lines of a table; a name in one may hold any other end of a line."""
    return [line for line in raw.split(b"\n") if line]


def link(path: str) -> str | None:
    """Return where a link points to, None if it is gone or does not say."""
    try:
        return text(os.readlink(os.fsencode(path)))
    except OSError:
        return None


def numbers(folder: Path | str) -> tuple[int, ...]:
    """Return the numeric names in a folder, sorted; none if it is gone."""
    try:
        return tuple(sorted(int(name) for name in os.listdir(folder) if name.isdigit()))
    except GONE:
        return ()


def parse_stat(raw: bytes) -> Stat:
    """Read one /proc/PID/stat; the name in it may hold spaces and parentheses."""
    pid, _, rest = raw.partition(b" (")
    comm, _, tail = rest.rpartition(b") ")
    fields = tail.split()
    return Stat(
        pid=int(pid),
        comm=text(comm),
        state=fields[0].decode("ascii"),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        tty=int(fields[4]),
        kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        exiting=bool(int(fields[6]) & _EXITING),
        start_time=int(fields[19]),
    )


def cpu_times(root: Path | str, pid: int) -> dict[int, int]:
    """Return the nanoseconds that each thread of a process has run; 0 where it is not told."""
    folder = f"{root}/{pid}/task"
    told = ((tid, (read(f"{folder}/{tid}/schedstat") or b"").split()) for tid in numbers(folder))
    return {tid: int(fields[0]) if fields else 0 for tid, fields in told}


def parse_status(raw: bytes) -> dict[str, str]:
    """Read the `Name: value` lines of a status or meminfo file."""
    pairs = (line.partition(":") for line in text(raw).splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def kibibytes(status: dict[str, str], name: str) -> int:
    """Return the bytes of a `Name: N kB` line, 0 if it is not there."""
    number = status.get(name, "").partition(" ")[0]
    return int(number) * 1024 if number.isdigit() else 0


def below(root: Path | str, pid: int, inside: Collection[int]) -> bool:
    """Whether a process that a tree's list lacks is one of the tree, started since, or has ended.

    A job that starts programs in a loop always has some of these.
    """
    seen: set[int] = set()
    while pid not in inside:
        raw = read(f"{root}/{pid}/stat")
        if not raw or pid in seen:
            return not seen
        seen.add(pid)
        pid = parse_stat(raw).ppid
    return True


def stats(root: Path) -> Iterator[Stat]:
    """Go through every process there is, in the order of pids."""
    for pid in numbers(root):
        raw = read(f"{root}/{pid}/stat")
        if raw:
            yield parse_stat(raw)
