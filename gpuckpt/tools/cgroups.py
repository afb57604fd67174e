"""Control groups: which a process is in, whether they are frozen, how much memory they leave it.

Version 1 and 2 are both read, also side by side as on hybrid hosts, from wherever they are
mounted.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Final

from gpuckpt.tools.procfs import read, text
from gpuckpt.value import Value

# the numbers a version 1 group answers when it has no limit lie just below 2^63
_UNLIMITED: Final = 1 << 60
_CONTAINERS: Final = (
    (re.compile(r"/(?:docker|docker-ce)[-/]([0-9a-f]{12})[0-9a-f]{52}"), "Docker container"),
    (re.compile(r"(?:libpod|libpod-payload)-([0-9a-f]{12})[0-9a-f]{52}"), "Podman container"),
    (re.compile(r"cri-containerd[-:]([0-9a-f]{12})"), "containerd container"),
    (re.compile(r"crio-([0-9a-f]{12})"), "CRI-O container"),
    (re.compile(r"kubepods.*?pod([0-9a-f_-]{36})"), "Kubernetes pod"),
    (re.compile(r"/lxc(?:\.payload)?[./]([^/]+)"), "LXC container"),
    (re.compile(r"/machine\.slice/(?:machine-)?([^/]+?)(?:\.scope|\.service)?(?:/|$)"), "machine"),
)


class _Mount(Value, frozen=True):
    """One mounted hierarchy; `controllers` is empty for version 2."""

    root: str
    point: Path
    controllers: frozenset[str]


class Cgroups:
    """The control groups of processes under one /proc."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        """Know the place; where the hierarchies are mounted is found out when it matters."""
        self.root = root

    @cached_property
    def _mounts(self) -> tuple[_Mount, ...]:
        return tuple(_mounts(read(self.root / "self" / "mountinfo") or b""))

    def paths(self, pid: int) -> dict[str, str]:
        """Return the group of a process by controller; version 2 is under the empty name."""
        found: dict[str, str] = {}
        for line in text(read(f"{self.root}/{pid}/cgroup") or b"").split("\n"):
            _, colon, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            found.update(dict.fromkeys(controllers.split(",") if colon else (), path))
        return found

    def frozen(self, pid: int) -> str:
        """Return the group that holds this process frozen, "" if it may run."""
        paths = self.paths(pid)
        one = self._folder("freezer", paths)
        if one and _word(one / "freezer.state") in {"FROZEN", "FREEZING"}:
            return str(one)
        two = self._folder("", paths)
        if two and "frozen 1" in text(_soft(two / "cgroup.events")):
            return str(two)
        return ""

    def container(self, pid: int) -> str:
        """Return what kind of container a process seems to live in and its id, "" if in none."""
        for path in dict.fromkeys(self.paths(pid).values()):
            for pattern, name in _CONTAINERS:
                found = pattern.search(path)
                if found:
                    return f"{name} {found[1]}"
        return ""

    def memory_headroom(self, pid: int) -> int | None:
        """Return the bytes this process's groups still allow it, None if nothing limits it.

        Page cache counts as free: it goes when memory is needed.
        """
        paths = self.paths(pid)
        left: list[int] = []
        for controller, names in (("memory", _ONE), ("", _TWO)):
            folder, top = self._folder(controller, paths), self._top(controller)
            while folder is not None and top is not None:
                room = _headroom(folder, names)
                if room is not None:
                    left.append(room)
                folder = folder.parent if folder != top else None
        return min(left, default=None)

    def _folder(self, controller: str, paths: dict[str, str]) -> Path | None:
        """Return where a group is to be found, None if it cannot be seen from here."""
        path = paths.get(controller)
        for mount in self._mounts:
            if path is None or not _serves(mount, controller):
                continue
            inside = path.removeprefix(mount.root if mount.root != "/" else "").lstrip("/")
            if mount.root in {"/", path} or path.startswith(f"{mount.root}/"):
                return mount.point / inside
        return None

    def _top(self, controller: str) -> Path | None:
        return next((one.point for one in self._mounts if _serves(one, controller)), None)


class _MemoryFiles(Value, frozen=True):
    """The names of the memory controller's files in one version."""

    limit: str
    usage: str
    cache: tuple[str, ...]


_ONE: Final = _MemoryFiles(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_TWO: Final = _MemoryFiles("memory.max", "memory.current", ("inactive_file", "active_file"))


def _headroom(folder: Path, names: _MemoryFiles) -> int | None:
    limit, usage = _word(folder / names.limit), _word(folder / names.usage)
    if not limit.isdigit() or not usage.isdigit() or int(limit) >= _UNLIMITED:
        return None
    lines = (line.split() for line in text(_soft(folder / "memory.stat")).splitlines())
    stat = {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
    cache = sum(stat.get(name, 0) for name in names.cache)
    return max(0, int(limit) - int(usage) + cache)


def _serves(mount: _Mount, controller: str) -> bool:
    return controller in mount.controllers if controller else not mount.controllers


def _soft(path: Path) -> bytes:
    """Read a file that may be missing or closed to us."""
    try:
        return read(path) or b""
    except OSError:
        return b""


def _word(path: Path) -> str:
    return text(_soft(path)).strip()


def _mounts(mountinfo: bytes) -> list[_Mount]:
    found: list[_Mount] = []
    for line in text(mountinfo).split("\n"):  # a name may hold any other white space
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kind) < 3:  # noqa: PLR2004 - see proc(5)
            continue
        if kind[0] == "cgroup2":
            found.append(_Mount(fields[3], Path(fields[4]), frozenset()))
        elif kind[0] == "cgroup":
            found.append(_Mount(fields[3], Path(fields[4]), frozenset(kind[2].split(","))))
    return found
