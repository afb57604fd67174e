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
    """A file that is appended to; the job's only tie to the outside.

    With `alone` off it keeps its stdout and stderr, where `gpuckpt run` has put them.
    """

    def __init__(self, path: str, *, alone: bool = True) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)
        if alone:
            leave_surroundings()

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def say(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def count(self, step: Callable[[], object]) -> None:
        """Take steps and say `tick N` after each, until SIGTERM; a failure is said too."""
        try:
            for number in itertools.count(1):
                if self.stopping:
                    return
                step()
                self.say(f"tick {number}")
                time.sleep(INTERVAL)
        except RuntimeError as why:
            self.say(f"failed: {why}")
            raise


@contextmanager
def context(number: int = 0) -> Iterator[None]:
    """Use one GPU, the first if none is named, while the context lasts."""
    ask(driver.cuInit(0))
    gpu = ask(driver.cuDeviceGet(number))
    ask(driver.cuCtxSetCurrent(ask(driver.cuDevicePrimaryCtxRetain(gpu))))
    yield
    ask(driver.cuDevicePrimaryCtxRelease(gpu))
