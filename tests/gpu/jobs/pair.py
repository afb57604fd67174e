"""One process that uses two GPUs: `pair.py LOG`.

On GPU N it holds N + 1 GiB whose every MiB carries a number of that GPU alone, and a counter; a
tick counts on and looks at all of it.
"""

from __future__ import annotations

import ctypes
import itertools
import sys

from cuda.bindings import driver
from kit import Log

from gpuckpt.demo_job import ask

MIB = 1 << 20
GIB = 1024  # MiB
SIGNATURES = (0xA0000000, 0xB0000000)


class Half:
    """What the process holds on one GPU."""

    def __init__(self, number: int) -> None:
        self._signature, self._count = SIGNATURES[number], (number + 1) * GIB
        self._context = ask(driver.cuDevicePrimaryCtxRetain(ask(driver.cuDeviceGet(number))))
        ask(driver.cuCtxSetCurrent(self._context))
        self._place = int(ask(driver.cuMemAlloc(self._count * MIB)))
        self._counter = int(ask(driver.cuMemAlloc(4)))
        self._read = (ctypes.c_uint32 * 1)()
        for index in range(self._count):
            words = self._signature + index
            ask(driver.cuMemsetD32(self._place + index * MIB, words, MIB // 4))
        ask(driver.cuMemsetD32(self._counter, 0, 1))

    def _word(self, place: int) -> int:
        ask(driver.cuMemcpyDtoH(ctypes.addressof(self._read), place, 4))
        return self._read[0]

    def tick(self, number: int) -> None:
        ask(driver.cuCtxSetCurrent(self._context))
        if (counted := self._word(self._counter)) != number - 1:
            raise RuntimeError(f"the counter of {self._signature:x} is {counted}, not {number - 1}")
        ask(driver.cuMemsetD32(self._counter, number, 1))
        for index in range(self._count):
            found = self._word(self._place + index * MIB + number * 4096 % MIB)
            if found != self._signature + index:
                raise RuntimeError(f"MiB {index} of {self._signature:x} holds {found:x}")


def main() -> None:
    log = Log(sys.argv[1])
    ask(driver.cuInit(0))
    halves = [Half(0), Half(1)]
    numbers = itertools.count(1)

    def step() -> None:
        number = next(numbers)
        for half in halves:
            half.tick(number)

    log.count(step)


if __name__ == "__main__":
    main()
