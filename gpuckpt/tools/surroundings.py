"""What a process lives in that no image carries: its groups, rights, label, and Python's folders.

Asked of the job at a dump and of ourselves at a restore: what CRIU makes begins as our child.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.cgroups import Cgroups
from gpuckpt.tools.environment import paths
from gpuckpt.tools.origin import Origin, origin
from gpuckpt.tools.procfs import kibibytes, link, parse_status, read, text
from gpuckpt.tools.timers import expired
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON: Final = re.compile(r"python[0-9.]*[a-z]*$")
_PACKAGES: Final = ("lib/python*/site-packages", "lib/python*/dist-packages")
# of /proc/PID/stat, counted from the state: startcode, startstack, start_data, start_brk,
# arg_start and env_start
_PLACES: Final = (23, 25, 42, 44, 45, 47)
_UNLABELLED: Final = frozenset({"", "unconfined", "kernel"})


class Surroundings(Value, frozen=True):
    """All of it for one process.

    `cgroup` is the memory controller's group or that of version 2; `label` what a security module
    holds it under, "" if nothing does. `permitted` and `bounding` are sets of capabilities, by
    bit. `huge_pages` are bytes from the pool; `python` the prefix of its interpreter, "" if it is
    none. `layout` says where its program, stack, arguments and environment lie, which no second
    start repeats; `clock` is its CLOCK_MONOTONIC in seconds. `expired` are timerfds that CRIU would
    bring back as if they had not; `origin` says how its program was started.
    """

    root: str = "/"
    cgroup: str = ""
    label: str = ""
    permitted: int = 0
    bounding: int = 0
    huge_pages: int = 0
    python: str = ""
    layout: tuple[int, ...] = ()
    clock: float = 0.0
    expired: tuple[int, ...] = ()
    origin: Origin = Origin()


def surroundings(root: Path, pid: int) -> Surroundings:
    """Look at one process under the /proc at `root`; what cannot be seen stays empty."""
    folder = f"{root}/{pid}"
    status = parse_status(_soft(f"{folder}/status"))
    groups = Cgroups(root).paths(pid)
    return Surroundings(
        root=link(f"{folder}/root") or "/",
        cgroup=groups.get("memory") or groups.get("") or "",
        label=label(folder),
        permitted=int(status.get("CapPrm", "0"), 16),
        bounding=int(status.get("CapBnd", "0"), 16),
        huge_pages=kibibytes(status, "HugetlbPages"),
        python=prefix(folder),
        layout=_layout(_soft(f"{folder}/stat")),
        expired=_expired(folder),
        origin=origin(folder, status),
        clock=max(0.0, time.monotonic() - _offset(f"{root}/self") + _offset(folder)),
    )


def packages(prefix: str) -> tuple[str, ...] | None:
    """Return the names and versions of what is installed below a prefix; None: it is not there."""
    if not os.path.isdir(prefix):  # noqa: PTH112 - paths from /proc may hold any bytes
        return None
    found = (
        entry.name.removesuffix(".dist-info")
        for pattern in _PACKAGES
        for folder in Path(prefix).glob(pattern)
        for entry in folder.glob("*.dist-info")
    )
    return tuple(sorted(set(found)))


def _layout(stat: bytes) -> tuple[int, ...]:
    """Read where things lie from a stat file; all zero where this process may not see it."""
    fields = stat.rpartition(b") ")[2].split()
    return tuple(int(fields[at]) for at in _PLACES) if len(fields) > max(_PLACES) else ()


def _offset(folder: str) -> float:
    """Return by how much the monotonic clock of a process is off that of the host."""
    for line in _soft(f"{folder}/timens_offsets").splitlines():
        words = line.split()
        if words[:1] == [b"monotonic"]:
            return int(words[1]) + int(words[2]) / 1e9
    return 0.0


def label(folder: str) -> str:
    """Return the label of a security module; a profile that only watches counts as well."""
    raw = text(_soft(f"{folder}/attr/current")).strip("\0\n ")
    return "" if raw in _UNLABELLED else raw


def _expired(folder: str) -> tuple[int, ...]:
    try:
        return expired(folder)
    except PermissionError:  # a zombie
        return ()


def prefix(folder: str) -> str:
    """Return the prefix of a Python: that of its virtual environment, or of the program itself."""
    exe = link(f"{folder}/exe") or ""
    if not PYTHON.search(exe):
        return ""
    for candidate in _candidates(folder):
        # Path.is_file would raise where a folder is closed to us, on NFS say, or no path at all
        if os.path.isfile(candidate / "pyvenv.cfg"):  # noqa: PTH113
            return str(candidate)
    return str(Path(exe).parent.parent)


def _candidates(folder: str) -> Iterator[Path]:
    """Where a virtual environment would be: by the name it was called by, then by variables.

    Only what turns out to be an environment is kept.
    """
    called = text(_soft(f"{folder}/cmdline").partition(b"\0")[0])
    if "/" in called:
        yield Path(link(f"{folder}/cwd") or "/", called).parent.parent
    told = paths(_soft(f"{folder}/environ"))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if told.get(name, "").startswith("/"):
            yield Path(told[name])
    if called and "/" not in called:
        places = [Path(one) for one in told.get("PATH", "").split(":") if one.startswith("/")]
        found = (place for place in places if os.path.exists(place / called))  # noqa: PTH110
        yield from (place.parent for place in found)


def _soft(path: str) -> bytes:
    """Read a file that may be closed to us, or have nothing to say."""
    try:
        return read(path) or b""
    except OSError:
        return b""
