"""A stand-in for a collective, run by crew.py: `flags.py LOG [GPUS]`.

In every round each process sets a flag of its own in memory that all share and that the GPU writes
to and reads from, and its kernel waits there until it has seen the flags of all others: as ranks
wait for each other in an all-reduce. A wait is bounded; one in vain is told as a failure.
With more GPUs than one each process has the next one.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
import time

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

LINE = 64  # bytes from flag to flag
PATIENCE = 20 * 10**9  # nanoseconds of GPU time
TICK = 0.1  # seconds

# A line holds the flag and, behind it, the last round in which its owner has met all others.
PTX = """
.version 7.0
.target sm_70
.address_size 64

.visible .entry meet(
    .param .u64 flags, .param .u32 rank, .param .u32 count, .param .u32 round, .param .u64 patience
)
{
    .reg .pred %yes;
    .reg .u32 %rank, %count, %round, %index, %seen;
    .reg .u64 %flags, %mine, %place, %begin, %now, %patience;
    ld.param.u64 %flags, [flags];
    ld.param.u32 %rank, [rank];
    ld.param.u32 %count, [count];
    ld.param.u32 %round, [round];
    ld.param.u64 %patience, [patience];
    mul.wide.u32 %mine, %rank, 64;
    add.u64 %mine, %flags, %mine;
    st.volatile.global.u32 [%mine], %round;
    membar.sys;
    mov.u64 %begin, %globaltimer;
    mov.u32 %index, 0;
another:
    mul.wide.u32 %place, %index, 64;
    add.u64 %place, %flags, %place;
again:
    ld.volatile.global.u32 %seen, [%place];
    setp.ge.u32 %yes, %seen, %round;
    @%yes bra met;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %yes, %now, %patience;
    @%yes bra again;
    ret;
met:
    add.u32 %index, %index, 1;
    setp.lt.u32 %yes, %index, %count;
    @%yes bra another;
    st.volatile.global.u32 [%mine+4], %round;
    membar.sys;
    ret;
}
"""


class Meeting:
    """The shared memory, the kernel, and this process's place among all."""

    def __init__(self) -> None:
        self.rank, self.count = int(os.environ["CREW_RANK"]), int(os.environ["CREW_SIZE"])
        self._memory = mmap.mmap(int(os.environ["CREW_MEMORY"]), mmap.PAGESIZE)
        self._words = (ctypes.c_uint32 * (mmap.PAGESIZE // 4)).from_buffer(self._memory)
        place = ctypes.addressof(self._words)
        mapped = 2  # CU_MEMHOSTREGISTER_DEVICEMAP
        ask(driver.cuMemHostRegister(place, mmap.PAGESIZE, mapped))
        self._flags = int(ask(driver.cuMemHostGetDevicePointer(place, 0)))
        source = ctypes.create_string_buffer(PTX.encode())
        module = ask(driver.cuModuleLoadData(ctypes.addressof(source)))
        self._kernel = ask(driver.cuModuleGetFunction(module, b"meet"))

    @property
    def last(self) -> int:
        """The last round of all, 0 as long as nobody has named it."""
        return int(self._words[self.count * LINE // 4])

    @last.setter
    def last(self, number: int) -> None:
        self._words[self.count * LINE // 4] = number

    def meet(self, number: int) -> None:
        """Wait on the GPU until all have come to this round."""
        values = (
            ctypes.c_uint64(self._flags),
            ctypes.c_uint32(self.rank),
            ctypes.c_uint32(self.count),
            ctypes.c_uint32(number),
            ctypes.c_uint64(PATIENCE),
        )
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (1, 1, 1, 1, 1, 1)
        ask(driver.cuLaunchKernel(self._kernel, *shape, 0, 0, ctypes.addressof(pointers), 0))
        ask(driver.cuCtxSynchronize())
        if (met := self._words[self.rank * LINE // 4 + 1]) != number:
            raise RuntimeError(f"round {number}: the others did not come, the last was {met}")


def go_round(log: Log, meeting: Meeting) -> None:
    """Meet the others until rank 0 is told to end: all stop after the same round."""
    ticks, said = itertools.count(1), 0.0
    for number in itertools.count(1):
        if meeting.last and number > meeting.last:
            return
        if log.stopping and meeting.rank == 0 and not meeting.last:
            meeting.last = number + 1  # the others are in this round at most
        meeting.meet(number)
        if (now := time.monotonic()) > said + TICK:
            said = now
            log.say(f"tick {next(ticks)} round {number}")


def main() -> None:
    log = Log(sys.argv[1], alone=False)
    try:
        gpus = int(sys.argv[2]) if len(sys.argv) > 2 else 1
        with context(int(os.environ["CREW_RANK"]) % gpus):
            go_round(log, Meeting())
    except RuntimeError as why:
        log.say(f"failed: {why}")
        raise


if __name__ == "__main__":
    main()
