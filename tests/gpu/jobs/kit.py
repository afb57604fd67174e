"""What all test jobs need: a context, a log, a polite end."""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cuda.bindings import driver

from gpuckpt.demo_job import ask, leave_surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL = 0.1  # seconds


class Log:
    """A file that is appended to; the job's only tie to the outside."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._stopping = False
        signal.signal(signal.SIGTERM, self._stop)
        leave_surroundings()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def say(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def count(self, step: Callable[[], object]) -> None:
        """Take steps and say `tick N` after each, until SIGTERM; a failure is said too."""
        try:
            for number in itertools.count(1):
                if self._stopping:
                    return
                step()
                self.say(f"tick {number}")
                time.sleep(INTERVAL)
        except RuntimeError as why:
            self.say(f"failed: {why}")
            raise


@contextmanager
def context() -> Iterator[None]:
    """Use the first GPU while the context lasts."""
    ask(driver.cuInit(0))
    gpu = ask(driver.cuDeviceGet(0))
    ask(driver.cuCtxSetCurrent(ask(driver.cuDevicePrimaryCtxRetain(gpu))))
    yield
    ask(driver.cuDevicePrimaryCtxRelease(gpu))
