"""A job with 4 MiB of managed memory, which the driver cannot checkpoint: `managed.py LOG`.

It writes the memory on the GPU and reads it back by a copy: a CPU access to managed memory of a
process that is suspended would crash it.
"""

from __future__ import annotations

import ctypes
import itertools
import sys

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

SIZE = 4 << 20
ATTACH_GLOBAL = 1


def main() -> None:
    log = Log(sys.argv[1])
    with context():
        place = int(ask(driver.cuMemAllocManaged(SIZE, ATTACH_GLOBAL)))
        read = (ctypes.c_uint32 * 1)()
        numbers = itertools.count(1)

        def step() -> None:
            number = next(numbers)
            ask(driver.cuMemsetD32(place, number, SIZE // 4))
            ask(driver.cuMemcpyDtoH(ctypes.addressof(read), place + SIZE - 4, 4))
            if read[0] != number:
                raise RuntimeError(f"the memory holds {read[0]}, not {number}")

        log.count(step)


if __name__ == "__main__":
    main()
