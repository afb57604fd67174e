"""Threads that packing and unpacking share: a crew, and countdowns."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_TURN: Final = 0.2  # seconds; how soon a signal is heard


class Crew:
    """Up to `size` threads that do what they are given, in the order it was given."""

    def __init__(self, name: str, size: int) -> None:
        """Start nobody yet."""
        self.size = self._most = size
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def do(self, task: Callable[[], None]) -> None:
        """Have `task` done soon; it must not raise."""
        with self._lock:
            self._tasks.put(task)
            if len(self._threads) < self._most:
                self._begin()

    def hold(self, most: int) -> None:
        """Let no more than so many work, before any does; the rest waits for `release`."""
        self._most = min(most, self.size)

    def release(self) -> None:
        """Let all work."""
        with self._lock:
            if self._most < self.size:
                self._most = self.size
                for _ in range(min(self._tasks.qsize(), self.size - len(self._threads))):
                    self._begin()

    def dismiss(self, check: Callable[[], None] | None = None) -> None:
        """Let the threads end after what was given to them; waits for that.

        `check` is called meanwhile; when it raises, nobody waits any more.
        """
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                while thread.is_alive():
                    thread.join(_TURN if check else None)
                    if check:
                        check()

    def _begin(self) -> None:
        # daemon: a caller that forgets to dismiss the crew must not hang at exit
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while task := self._tasks.get():
            task()
            del task  # it may hold the last reference to a frame


class Countdown:
    """Does something once it was called `count` times, in the thread of the last call."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        """Wait for `count` calls."""
        self._left = count
        self._then = then
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Count one call."""
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._then()


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))
