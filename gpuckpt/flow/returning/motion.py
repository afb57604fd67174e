"""Whether a job that goes on has been seen to move: a process of it has had CPU time since.

Whoever runs at all, be it to do IO or to be switched away again, has had some nanoseconds of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuckpt.flow.work.toolbox import Toolbox

_SOON: Final = 0.002  # seconds; a busy job moves at once, one that waits may be watched at leisure
_LATER: Final = 0.1
_SLOWER: Final = 1.5


class Motion:
    """One job, watched from the moment it goes on, which is `begun`."""

    def __init__(self, tools: Toolbox, pids: Collection[int], seen: Callable[[], None]) -> None:
        """Know whom to watch; `seen` is told when the first of them has moved."""
        self.moved = False
        self.begun = time.monotonic()
        self._tools = tools
        self._pids = pids
        self._seen = seen
        self._before: dict[int, int] = {}
        self._pause = _SOON

    def begin(self) -> None:
        """Count from here: the job goes on now."""
        self.begun = time.monotonic()
        self._before = self._tools.proc.cpu_times(self._pids)

    def look(self) -> None:
        """See whether it has moved by now."""
        if not self.moved:
            now = self._tools.proc.cpu_times(self._pids)
            # a thread that is new was started by one that moved
            self.moved = any(self._before.get(tid, -1) < ran for tid, ran in now.items())
            if self.moved:
                self._seen()

    def wait(self, longest: float) -> None:
        """Let a little time pass, `longest` seconds at most, and look."""
        time.sleep(max(0.0, min(longest, _LATER if self.moved else self._pause)))
        self._pause = min(_LATER, self._pause * _SLOWER)
        self.look()

    @property
    def reason(self) -> str:
        """Why it was not seen to move, if it was not."""
        watched = time.monotonic() - self.begun
        return f"no process of it used CPU time in the {watched:.1f} s that it was watched"
