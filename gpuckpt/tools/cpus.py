"""The CPUs that threads may run on: CRIU 4.2 neither dumps nor restores them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_INIT = 1


class Cpus:
    """The CPUs of this host, which are those that init may run on, and who is bound to some."""

    def bound(self, threads: Iterable[int]) -> dict[int, frozenset[int]]:
        """Return the CPUs of those threads that may not run on just the CPUs of this host."""
        every = os.sched_getaffinity(_INIT)
        found: dict[int, frozenset[int]] = {}
        for thread in threads:
            try:
                cpus = os.sched_getaffinity(thread)
            except OSError:  # it has just ended
                continue
            if cpus != every:
                found[thread] = frozenset(cpus)
        return found

    def bind(self, thread: int, cpus: Iterable[int] = ()) -> bool:
        """Let a thread run on these CPUs alone, or on all; whether it got just these.

        What a cgroup does not allow, the kernel leaves out by itself.
        """
        wanted = set(cpus)
        try:
            os.sched_setaffinity(thread, wanted or os.sched_getaffinity(_INIT))
            return not wanted or os.sched_getaffinity(thread) == wanted
        except (OSError, ValueError):
            return False
