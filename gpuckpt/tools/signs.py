"""Signs of life of one process, and who else looks like it: what a look after a restore needs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gpuckpt.tools.procfs import cpu_times, link, numbers, parse_stat, read, stats
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Signs(Value, frozen=True):
    """How a process stands at one moment.

    `ran` is the CPU time all its threads have had, in nanoseconds; `states` the letter of each
    thread by its id.
    """

    ran: int
    states: dict[int, str]

    @property
    def stuck(self) -> bool:
        """Whether no thread can be interrupted."""
        return bool(self.states) and set(self.states.values()) == {"D"}


def signs(root: Path, pid: int) -> Signs | None:
    """Look at one process under the /proc at `root`, None if it is gone."""
    if not read(f"{root}/{pid}/stat"):
        return None
    folder = f"{root}/{pid}/task"
    tasks = ((tid, read(f"{folder}/{tid}/stat")) for tid in numbers(folder))
    states = {tid: parse_stat(stat).state for tid, stat in tasks if stat}
    return Signs(sum(cpu_times(root, pid).values()), states)


def copies(root: Path, argv: tuple[str, ...], cwd: str, since: float) -> Iterator[int]:
    """Go through the processes with this command line and folder started at `since` or later.

    `since` is in seconds since the epoch.
    """
    wanted = b"".join(os.fsencode(word) + b"\0" for word in argv)
    # the kernel's own btime has its fraction of a second cut off: a copy would look too old
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + 1 / _TICKS
    for one in stats(root):
        if one.kernel_thread or booted + one.start_time / _TICKS < since:
            continue
        if read(f"{root}/{one.pid}/cmdline") == wanted and link(f"{root}/{one.pid}/cwd") == cwd:
            yield one.pid


def neglected(root: Path, parent: int) -> frozenset[int]:
    """Return the zombies that a process has not waited for."""
    return frozenset(one.pid for one in stats(root) if one.ppid == parent and one.state == "Z")
