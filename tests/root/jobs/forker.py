"""A job that looks as if it used a GPU and had forked: `forker.py FOLDER DEVICE [own]`.

It holds DEVICE open, maps DEVICE-map if that can be mapped, and forks two children, which keep
both; with `own` they open DEVICE once more, for themselves. The fake cuda-checkpoint makes the
parent close its own (SIGUSR1) and open it again (SIGUSR2). FOLDER/parent, first and second get
lines as long as all is well.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

HELD: list[int] = []
MAPPED: list[mmap.mmap] = []


def close(*_: object) -> None:
    while HELD:
        os.close(HELD.pop())
    while MAPPED:
        MAPPED.pop().close()


def reopen(*_: object) -> None:
    if not HELD:
        HELD.append(os.open(sys.argv[2], os.O_RDWR | os.O_CLOEXEC))


def main() -> None:
    folder, device, *own = sys.argv[1:]
    signal.signal(signal.SIGUSR1, close)
    signal.signal(signal.SIGUSR2, reopen)
    reopen()
    with suppress(OSError):
        fd = os.open(f"{device}-map", os.O_RDWR)
        MAPPED.append(mmap.mmap(fd, 8192))
        os.close(fd)
    name = "parent"
    for child in ("first", "second"):
        if os.fork() == 0:
            name = child
            if own:
                HELD.append(os.open(device, os.O_RDWR))
            break
    number = 0
    while True:
        if HELD:  # as long as it has a GPU, that is
            with Path(folder, name).open("a") as log:
                log.write(f"{number}\n")
            number += 1
        time.sleep(0.05)


if __name__ == "__main__":
    main()
