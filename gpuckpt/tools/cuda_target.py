"""The process a driver call is about: is it the one, whose is it, can it answer, is there room."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.model import ProcessRef
from gpuckpt.tools.procfs import Stat, numbers, parse_stat, parse_status, read
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.model import GpuUse
    from gpuckpt.tools.nvidia import Nvidia

_DEAD: Final = frozenset("ZXx")
_STOPPED: Final = frozenset("tT")
_POLL: Final = 0.05
_CGROUPS: Final = "/sys/fs/cgroup"


class Target(Value, frozen=True):
    """One process for as long as it lives."""

    ref: ProcessRef
    root: Path = Path("/proc")

    @staticmethod
    def look(pid: int, root: Path = Path("/proc")) -> Target | None:
        """Return the process that has this pid now; None if there is none or only a zombie."""
        stat = _stat(f"{root}/{pid}")
        if stat is None or stat.state in _DEAD:
            return None
        return Target(ProcessRef(pid, stat.start_time), root)

    @property
    def pid(self) -> int:
        """The pid to give to the driver."""
        return self.ref.pid

    def alive(self) -> bool:
        """Whether this very process is there and not dying."""
        stat = _stat(self._folder)
        if stat is None or stat.start_time != self.ref.start_time or stat.state in _DEAD:
            return False
        # A process that crashed looks alive for as long as its core is written.
        return _status(self._folder).get("CoreDumping") != "1"

    def stopped(self) -> bool:
        """Whether it is stopped as a whole, by a signal: the driver cannot ask it anything."""
        stat = _stat(self._folder)
        return stat is not None and stat.state == "T"

    def held(self, *, parked: bool = False) -> bool:
        """Whether a thread of it is traced or stopped, or its cgroup frozen.

        The driver works through a thread inside the process, which then cannot run. A process
        that we have `parked` ourselves is not held by that.
        """
        for tid in numbers(f"{self._folder}/task"):
            task = f"{self._folder}/task/{tid}"
            stat = _stat(task)
            stopped = stat is not None and stat.state in _STOPPED and not parked
            if stopped or _status(task).get("TracerPid", "0") != "0":
                return True
        return self._frozen()

    @property
    def _folder(self) -> str:
        return f"{self.root}/{self.pid}"

    def _frozen(self) -> bool:
        """Whether its cgroup (v2) is frozen; tasks in one look as if they slept."""
        with suppress(OSError):
            for line in (read(f"{self._folder}/cgroup") or b"").decode().splitlines():
                if line.startswith("0::/"):
                    events = read(f"{_CGROUPS}/{line.removeprefix('0::/')}/cgroup.events")
                    return b"frozen 1" in (events or b"").splitlines()
        return False


class Claim:
    """The right to act on one process: only one call process of this host has it at a time.

    Two gpuckpts on one process, or one beside the way back of another that was killed, would take
    each other's steps. The kernel gives the claim back when its holder ends, however it ends.
    """

    def __init__(self, target: Target) -> None:
        """Claim nothing yet."""
        # Linux: a name that begins with NUL is in no file system and goes with its socket.
        self._name = f"\0gpuckpt-cuda-{target.pid}-{target.ref.start_time}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def take(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the claim; whether we have it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._socket.bind(self._name)
            except OSError as why:
                if why.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() >= deadline:
                    self.give_back()
                    return False
                time.sleep(_POLL)
            else:
                return True

    def give_back(self) -> None:
        """Let others claim the process."""
        self._socket.close()


class Room(Value, frozen=True):
    """GPU memory a process needs to come back.

    A restore that runs out of it leaves the process stuck for good (driver 580), so nobody
    restores without looking.
    """

    nvidia: Nvidia
    uses: tuple[GpuUse, ...]

    @staticmethod
    def of(target: Target, nvidia: Nvidia) -> Room:
        """Note what a process holds now."""
        return Room(nvidia, nvidia.uses([target.pid]))

    def enough(self) -> bool:
        """Whether what it held is free again; a GPU that NVML does not know is no reason."""
        facts = self.nvidia.facts() if self.uses else None
        if facts is None:
            return True
        free = {gpu.uuid: gpu.memory_free for gpu in facts.gpus if gpu.memory_total}
        return all(use.bytes <= free.get(use.uuid, use.bytes) for use in self.uses)


def _stat(folder: str) -> Stat | None:
    raw = read(f"{folder}/stat")
    return parse_stat(raw) if raw else None


def _status(folder: str) -> dict[str, str]:
    return parse_status(read(f"{folder}/status") or b"")
