"""Take process numbers: claim.py NUMBER... starts a sleeping child with each of these pids.

It says "taken" when all are there, ends them at the end of its standard input, and waits for them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_CLONE3 = 435


def claim(number: int) -> None:
    """Fork a child with this very pid that sleeps."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int * 1)(number)
    arguments = (ctypes.c_uint64 * 11)()  # struct clone_args in <linux/sched.h>
    arguments[4], arguments[8], arguments[9] = signal.SIGCHLD, ctypes.addressof(wanted), 1
    pid = libc.syscall(_CLONE3, arguments, ctypes.sizeof(arguments))
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    if pid != number:
        raise OSError(ctypes.get_errno(), f"pid {number} cannot be had")


def main() -> None:
    """Hold the numbers until told otherwise."""
    numbers = [int(word) for word in sys.argv[1:]]
    for number in numbers:
        claim(number)
    print("taken", flush=True)
    sys.stdin.read()
    for number in numbers:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)


main()
