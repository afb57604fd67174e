"""A job that shares memory in every way there is. Usage: sharer.py FOLDER NAME [plain].

A pool of spawned workers with its queues and locks (not with `plain`), a POSIX semaphore, a block
of shared memory, one in a folder of its own, a file in /dev/shm that was deleted. FOLDER/NAME.log
gets a line each time that all of it has been used and was as it should be; FOLDER/NAME.files names
what lies in /dev/shm.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any


def work(shared: tuple[str, Any, Any], number: int) -> int:
    """Count one up in the shared block, under the lock."""
    name, lock, queue = shared
    block = shared_memory.SharedMemory(name)
    with lock:
        assert block.buf is not None
        block.buf[0] = (block.buf[0] + 1) % 256
    block.close()
    queue.put(number * number)
    return number


class Worker:
    """A spawned process that works for ever."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.asked, self.told, self.lock = context.Queue(), context.Queue(), context.Lock()
        self.process = context.Process(target=serve, args=(name, self.lock, self.asked, self.told))
        self.process.daemon = True
        self.process.start()

    def ask(self, number: int) -> int:
        self.asked.put(number)
        answer: int = self.told.get()
        return answer


def serve(name: str, lock: Any, asked: Any, told: Any) -> None:
    """Answer each number with its square."""
    while True:
        work((name, lock, told), asked.get())


def main(folder: Path, name: str, plain: bool) -> None:
    """Use all of it again and again."""
    libc = ctypes.CDLL(None)
    libc.sem_open.restype = ctypes.c_void_p
    semaphore = libc.sem_open(f"/gpuckpt-{name}".encode(), os.O_CREAT, 0o600, 3)
    block = shared_memory.SharedMemory(f"gpuckpt-{name}-block", create=True, size=1 << 20)
    assert block.buf is not None
    gone = os.open(f"/dev/shm/gpuckpt-{name}-gone", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(gone, 8192)
    ghost = mmap.mmap(gone, 8192)
    Path(f"/dev/shm/gpuckpt-{name}-gone").unlink()
    inner = Path(f"/dev/shm/gpuckpt-{name}-folder/inner")
    for made in (inner.parent, inner):
        made.mkdir(mode=0o750)
    with (inner / "block").open("w+b") as file:
        file.truncate(8192)
        nested = mmap.mmap(file.fileno(), 8192)
    worker = None if plain else Worker(block.name)
    value = ctypes.c_int()
    count = 0
    while True:
        if worker is not None:
            assert worker.ask(count) == count * count
            assert block.buf[0] == (count + 1) % 256
        block.buf[4096:4104] = count.to_bytes(8, "little")
        libc.sem_wait(ctypes.c_void_p(semaphore))
        libc.sem_getvalue(ctypes.c_void_p(semaphore), ctypes.byref(value))
        assert value.value == 2, value
        libc.sem_post(ctypes.c_void_p(semaphore))
        ghost[4096:4104] = nested[4096:4104] = count.to_bytes(8, "little")
        with (folder / f"{name}.log").open("a") as log:
            log.write(f"{count}\n")
        if not count:
            maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
            own = {int(line[4]) for line in maps if line[5:] and line[5].startswith("/dev/shm/")}
            paths = [Path(place, one) for place, _, ones in os.walk("/dev/shm") for one in ones]
            found = sorted(str(one) for one in paths if one.exists() and one.stat().st_ino in own)
            (folder / f"{name}.files").write_text("\n".join(found))
        time.sleep(0.02)
        count += 1
        assert int.from_bytes(block.buf[4096:4104], "little") == count - 1
        assert int.from_bytes(ghost[4096:4104], "little") == count - 1
        assert nested[:] == ghost[:]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "plain" in sys.argv[3:])
