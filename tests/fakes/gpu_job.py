"""A job that looks from outside as if it used a GPU: `gpu_job.py LOG DEVICE [MIB]`.

It holds DEVICE open and counts; the fake cuda-checkpoint makes it close DEVICE (SIGUSR1) and open
it again (SIGUSR2). Without DEVICE it does not count, as a process does not whose CUDA calls block.
With GPU_JOB_COOPERATE in the environment it can be brought to rest after every count.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from gpuckpt import cooperate


def main() -> None:
    log, device, *more = sys.argv[1:]
    held: list[int] = []
    ballast = os.urandom(int(more[0]) << 20 if more else 0)

    def close(*_: object) -> None:
        while held:
            os.close(held.pop())

    def reopen(*_: object) -> None:
        if not held:
            held.append(os.open(device, os.O_RDWR | os.O_CLOEXEC))

    signal.signal(signal.SIGUSR1, close)
    signal.signal(signal.SIGUSR2, reopen)
    reopen()
    asked = os.environ.get("GPU_JOB_COOPERATE")
    point = cooperate.Point(lambda: None, lambda: None) if asked else None
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    number = 0
    while len(ballast) >= 0:
        if held:
            number += 1
            os.write(out, f"tick {number}\n".encode())
            if point is not None and point.here():
                os.write(out, f"rested, device {'open' if held else 'away'}\n".encode())
        time.sleep(0.05)


if __name__ == "__main__":
    main()
