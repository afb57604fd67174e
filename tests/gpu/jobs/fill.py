"""A neighbour that takes nearly all free GPU memory when asked: `fill.py LOG LEAVE_MIB`.

It says "ready" with little memory of its own, and "full" once it has followed a SIGUSR1.
"""

from __future__ import annotations

import signal
import sys

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

MIB = 1 << 20


def main() -> None:
    log, leave = Log(sys.argv[1]), int(sys.argv[2]) * MIB
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
    with context():
        log.say("ready")

        def step() -> None:
            if not asked:
                return
            asked.clear()
            # pieces: one that is too large for what is left in one place would take nothing
            while (free := int(ask(driver.cuMemGetInfo()))) > leave + 2 * MIB:
                ask(driver.cuMemAlloc(min(free - leave, 4096 * MIB)))
            log.say("full")

        log.count(step)


if __name__ == "__main__":
    main()
