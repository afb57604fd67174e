"""A job whose one kernel spins for a while: `spin.py LOG SECONDS`. It counts on afterwards.

The log says `spinning` once the kernel was launched and `done` once it has ended.
"""

from __future__ import annotations

import ctypes
import sys

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

# %globaltimer counts nanoseconds; every multiprocessor sees the same.
PTX = """
.version 7.0
.target sm_70
.address_size 64

.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %early;
    .reg .u64 %begin, %now, %wanted;
    ld.param.u64 %wanted, [nanoseconds];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %early, %now, %wanted;
    @%early bra again;
    ret;
}
"""


def main() -> None:
    log = Log(sys.argv[1])
    with context():
        source = ctypes.create_string_buffer(PTX.encode())
        module = ask(driver.cuModuleLoadData(ctypes.addressof(source)))
        kernel = ask(driver.cuModuleGetFunction(module, b"spin"))
        wanted = ctypes.c_uint64(int(float(sys.argv[2]) * 1e9))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(wanted))
        shape = (1, 1, 1, 1, 1, 1)
        ask(driver.cuLaunchKernel(kernel, *shape, 0, 0, ctypes.addressof(pointers), 0))
        log.say("spinning")
        ask(driver.cuCtxSynchronize())
        log.say("done")
        log.count(lambda: ask(driver.cuCtxSynchronize()))


if __name__ == "__main__":
    main()
