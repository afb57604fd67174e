"""A job that holds much memory of one GPU and checks a part of it: `ballast.py LOG GIB [GPU]`.

Every MiB holds its own number; a tick looks at all of them, in another order every time.
"""

from __future__ import annotations

import ctypes
import itertools
import sys

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

MIB = 1 << 20


def main() -> None:
    log, count = Log(sys.argv[1]), int(float(sys.argv[2]) * 1024)
    with context(int(sys.argv[3]) if len(sys.argv) > 3 else 0):
        place = int(ask(driver.cuMemAlloc(count * MIB)))
        for index in range(count):
            ask(driver.cuMemsetD32(place + index * MIB, index, MIB // 4))
        read = (ctypes.c_uint32 * 1)()
        offsets = itertools.cycle(range(0, MIB, 4096))

        def step() -> None:
            offset = next(offsets)
            for index in range(count):
                ask(driver.cuMemcpyDtoH(ctypes.addressof(read), place + index * MIB + offset, 4))
                if read[0] != index:
                    raise RuntimeError(f"MiB {index} holds {read[0]}")

        log.count(step)


if __name__ == "__main__":
    main()
