"""A job that looks from outside as if it used a GPU: `gpu_job.py LOG DEVICE [MIB]`.

It holds DEVICE open and counts; the fake cuda-checkpoint makes it close DEVICE (SIGUSR1) and open
it again (SIGUSR2). Without DEVICE it does not count, as a process does not whose CUDA calls block.
With GPU_JOB_COOPERATE in the environment it can be brought to rest after every count. With
GPU_JOB_MEMORY, in MiB, DEVICE holds its GPU memory: as with the driver, that is in fresh private
memory of the process while the state is away, and nowhere in it else.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from gpuckpt import cooperate


class Gpu:
    """The device file, open or away, and the copy of what it holds."""

    def __init__(self, device: str, size: int) -> None:
        self.device, self.size = device, size
        self.held: list[int] = []
        self.copies: list[mmap.mmap] = []
        if size:
            Path(device).write_bytes(os.urandom(size))

    def close(self, *_: object) -> None:
        if self.held and self.size:
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self.copies.append(mmap.mmap(-1, self.size, private))
            os.preadv(self.held[0], [self.copies[0]], 0)
        while self.held:
            os.close(self.held.pop())

    def reopen(self, *_: object) -> None:
        if not self.held:
            self.held.append(os.open(self.device, os.O_RDWR | os.O_CLOEXEC))
        while self.copies:
            os.pwrite(self.held[0], self.copies[0], 0)
            self.copies.pop().close()


def main() -> None:
    log, device, *more = sys.argv[1:]
    ballast = os.urandom(int(more[0]) << 20 if more else 0)
    gpu = Gpu(device, int(os.environ.get("GPU_JOB_MEMORY", "0")) << 20)
    signal.signal(signal.SIGUSR1, gpu.close)
    signal.signal(signal.SIGUSR2, gpu.reopen)
    gpu.reopen()
    asked = os.environ.get("GPU_JOB_COOPERATE")
    point = cooperate.Point(lambda: None, lambda: None) if asked else None
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    number = 0
    while len(ballast) >= 0:
        if gpu.held:
            number += 1
            os.write(out, f"tick {number}\n".encode())
            if point is not None and point.here():
                os.write(out, f"rested, device {'open' if gpu.held else 'away'}\n".encode())
        time.sleep(0.05)


if __name__ == "__main__":
    main()
