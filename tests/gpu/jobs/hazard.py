"""A job with one thing in it that a checkpoint minds, or that only looks so: `hazard.py LOG KIND`.

Each kind leaves traces that a plan must read rightly before any driver call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from _ctypes import dlclose
from typing import TYPE_CHECKING

from cuda.bindings import driver
from kit import Log, context

from gpuckpt.demo_job import ask

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def nvml() -> ctypes.CDLL:
    """Load NVML and start it."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    return library


def nvml_unloaded() -> None:
    """Leave a callback behind that points into nothing."""
    dlclose(nvml()._handle)


def nvml_shut_down() -> None:
    """Do it as it should be done."""
    library = nvml()
    library.nvmlShutdown()
    dlclose(library._handle)


def managed() -> None:
    """Hold a MiB of managed memory."""
    place = ask(driver.cuMemAllocManaged(MIB, 1))
    ask(driver.cuMemsetD8(place, 7, MIB))


def managed_before() -> None:
    """Have had some, and given it back."""
    ask(driver.cuMemFree(ask(driver.cuMemAllocManaged(MIB, 1))))


def exported() -> None:
    """Hold a handle by which others could map memory of ours."""
    handle_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.requestedHandleTypes = handle_type
    handle = ask(driver.cuMemCreate(2 * MIB, wanted, 0))
    ask(driver.cuMemExportToShareableHandle(handle, handle_type, 0))


def offered() -> None:
    """Offer an event to other processes; nobody takes it."""
    ask(driver.cuIpcGetEventHandle(ask(driver.cuEventCreate(2 | 4))))


def pinned() -> None:
    """Hold pinned host memory."""
    ask(driver.cuMemHostAlloc(MIB, 0))


def forked() -> None:
    """Have a child that holds all our files and knows nothing of CUDA."""
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(0)


def plain() -> None:
    """Do nothing special."""


KINDS: dict[str, Callable[[], object]] = {
    "plain": plain,
    "nvml-kept": nvml,
    "nvml-unloaded": nvml_unloaded,
    "nvml-shut-down": nvml_shut_down,
    "managed": managed,
    "managed-before": managed_before,
    "exported": exported,
    "offered": offered,
    "pinned": pinned,
    "forked": forked,
}


def main() -> None:
    log = Log(sys.argv[1])
    if sys.argv[2] == "nvml-only":
        nvml()
        log.count(lambda: None)
        return
    with context():
        place = ask(driver.cuMemAlloc(MIB))
        KINDS[sys.argv[2]]()
        log.count(lambda: ask(driver.cuMemsetD8(place, 1, MIB)))


if __name__ == "__main__":
    main()
