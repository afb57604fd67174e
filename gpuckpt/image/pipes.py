"""Waiting for one end of a pipe without missing that everything is to stop."""

from __future__ import annotations

import select

from gpuckpt.image.memory import Stopped

IDLE = 50  # milliseconds without a byte after which memory is given up, if others want it


class Watch:
    """Waits for a descriptor to be ready, or for `stop` to become readable."""

    def __init__(self, fd: int, events: int, stop: int) -> None:
        """Wait for `events` (select.POLLIN or POLLOUT) on `fd`."""
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(fd, events)
        self._poll.register(stop, select.POLLIN)

    def ready(self, timeout: int | None = None) -> bool:
        """Wait up to `timeout` milliseconds, None for ever; False if that was not enough.

        Raises:
            Stopped: `stop` is readable.
        """
        seen = self._poll.poll(timeout)
        if any(fd == self._stop for fd, _ in seen):
            raise Stopped
        return bool(seen)
