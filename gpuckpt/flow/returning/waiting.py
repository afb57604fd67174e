"""Staying as the parent of a job that was restored: signals go in, its exit status comes out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox

POLL_SECONDS = 0.1


def wait_for(tools: Toolbox, root_pid: int, interrupts: Interrupts) -> int:
    """Stay as the restored root's parent; pass signals on; return its exit status.

    A root that died of signal n gives 128 + n, as a shell would say.
    """
    while not (ended := tools.proc.reap([root_pid])):
        if (signum := interrupts.take()) is not None:
            tools.proc.signal(root_pid, signum)
        time.sleep(POLL_SECONDS)
    status = ended[root_pid]
    return status if status >= 0 else 128 - status
