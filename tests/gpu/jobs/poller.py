"""A job whose threads ask all the time whether the GPU is done: `poller.py LOG`.

cuEventQuery, cuStreamQuery, cuStreamSynchronize and cuCtxSynchronize on what is idle: the driver's
lock does not stop them, and each crashes a process that is checkpointed (seen on 580.159).
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

SIZE = 1 << 20


def poll(call: object, current: object, failures: list[str]) -> None:
    ask(driver.cuCtxSetCurrent(current))
    while not failures:
        status = call()[0]  # type: ignore[operator]
        if int(status) != 0:
            failures.append(f"{call}: {status}")
        time.sleep(0.001)


def main() -> None:
    log = Log(sys.argv[1])
    with context():
        current = ask(driver.cuCtxGetCurrent())
        place = int(ask(driver.cuMemAlloc(SIZE)))
        stream, event = ask(driver.cuStreamCreate(1)), ask(driver.cuEventCreate(0))
        ask(driver.cuEventRecord(event, stream))
        ask(driver.cuCtxSynchronize())
        failures: list[str] = []
        calls = (
            lambda: driver.cuEventQuery(event),
            lambda: driver.cuStreamQuery(stream),
            lambda: driver.cuStreamSynchronize(stream),
            driver.cuCtxSynchronize,
        )
        for call in calls:
            threading.Thread(target=poll, args=(call, current, failures), daemon=True).start()
        read = (ctypes.c_uint32 * 1)()
        numbers = itertools.count(1)

        def step() -> None:
            number = next(numbers)
            ask(driver.cuMemsetD32(place, number, SIZE // 4))
            ask(driver.cuMemcpyDtoH(ctypes.addressof(read), place + SIZE - 4, 4))
            if failures or read[0] != number:
                raise RuntimeError(f"{failures}, the memory holds {read[0]}, not {number}")

        log.count(step)


if __name__ == "__main__":
    main()
