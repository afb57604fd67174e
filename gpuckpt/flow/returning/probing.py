"""Asking a job by the user's own command until it answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import ShellTool

_SOON: Final = 0.05
_PAUSE: Final = 0.5


def answered(
    shell: ShellTool,
    interrupts: Interrupts,
    command: str,
    timeout: float,
    rest: Callable[[float], bool],
) -> str:
    """Run the command until it succeeds: empty then, else why it did not in its time.

    `rest` lets time pass until a moment of the monotonic clock; False: the job has ended, and is
    asked no more.

    Raises:
        Interrupted: a signal came.
    """
    ends = time.monotonic() + timeout
    pause = _SOON
    while True:
        interrupts.check()
        try:
            answer = shell.run(command, max(1.0, ends - time.monotonic()), interrupts.fd)
        except Stopped:
            interrupts.check()
            raise
        if not answer or time.monotonic() >= ends:
            return answer
        if not rest(time.monotonic() + pause):
            return ""
        pause = min(_PAUSE, 2 * pause)
