"""Many small pieces of work on all cores, with a buffer for each thread, stopped by a signal."""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING, Final

from gpuckpt.image.crew import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuckpt.flow.work.interrupts import Interrupts

# so much stays in a core's cache between a copy out of a process and the digest of it
PIECE: Final = 512 << 10
_POLL_SECONDS: Final = 0.05


def on_all_cores(tasks: Iterable[Callable[[memoryview], None]], interrupts: Interrupts) -> None:
    """Do all tasks, each with a buffer of PIECE bytes to itself.

    Raises:
        Interrupted: a signal came; some were not done.
        BaseException: what the first task that failed has raised.
    """
    _Work(tasks).run(interrupts)


class _Work:
    def __init__(self, tasks: Iterable[Callable[[memoryview], None]]) -> None:
        self._tasks = iter(tasks)
        self._lock = threading.Lock()
        self._stopped = False
        self._failed: list[BaseException] = []

    def run(self, interrupts: Interrupts) -> None:
        threads = [threading.Thread(target=self._thread, name="compare") for _ in range(cores())]
        for one in threads:
            one.start()
        try:
            for one in threads:
                while one.is_alive():
                    interrupts.check()
                    one.join(_POLL_SECONDS)
        finally:
            self._stopped = True
            for one in threads:
                one.join()
        if self._failed:
            raise self._failed[0]

    def _thread(self) -> None:
        view = memoryview(mmap.mmap(-1, PIECE))
        try:
            while not self._stopped and (task := self._next()) is not None:
                task(view)
        except BaseException as why:  # noqa: BLE001 - raised again by who waits for the threads
            self._failed.append(why)
            self._stopped = True

    def _next(self) -> Callable[[memoryview], None] | None:
        with self._lock:
            return next(self._tasks, None)
