"""A job that looks from outside as if it used a GPU: `gpu_job.py LOG DEVICE [MIB]`.

It holds DEVICE open and counts; the fake cuda-checkpoint makes it close DEVICE (SIGUSR1) and open
it again (SIGUSR2). Without DEVICE it does not count, as a process does not whose CUDA calls block.
"""

from __future__ import annotations

import os
import signal
import sys
import time


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
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    number = 0
    while len(ballast) >= 0:
        if held:
            number += 1
            os.write(out, f"tick {number}\n".encode())
        time.sleep(0.05)


if __name__ == "__main__":
    main()
