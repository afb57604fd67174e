"""Staying as the parent of a job that was restored: signals go in, its exit status comes out."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from gpuckpt.flow.work.departure import Departure, told

if TYPE_CHECKING:
    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import RestoreResult
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox

POLL_SECONDS = 0.1


def wait_for(tools: Toolbox, job: RestoreResult, interrupts: Interrupts, reporter: Reporter) -> int:
    """Stay as the restored job's parent; pass signals on; return its exit status.

    One that died of signal n gives 128 + n, as a shell would say. That it was dumped is told.
    """
    leaving = Departure(tools, job.root_pid)
    leaving.look()
    while not (ended := tools.proc.reap([job.parent])):
        if (signum := interrupts.take()) is not None:
            tools.proc.signal(job.parent, signum)
        time.sleep(POLL_SECONDS)
        leaving.look()
    status = ended[job.parent]
    status = status if status >= 0 else 128 - status
    # as CRIU ends what it has dumped
    if status == 128 + signal.SIGKILL and (image := leaving.image):
        reporter.note(told(image))
    return status
