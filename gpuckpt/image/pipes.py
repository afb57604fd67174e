"""Waiting for one end of a pipe without missing that everything is to stop."""

from __future__ import annotations

import select
from contextlib import suppress

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


class Room:
    """Waits until a pipe that was found full has room again, or `stop` becomes readable.

    A question whether there is room is answered with yes while the reader is still inside its
    read(), and whoever writes then spins for the pipe's lock on a CPU that others need. An
    edge-triggered wait ends when the reader has let go of the pipe.
    """

    def __init__(self, fd: int, stop: int) -> None:
        """Wait for `fd`; anything but a pipe is always said to have room."""
        self._stop = stop
        self._poll = select.epoll()
        self._poll.register(stop, select.EPOLLIN)
        with suppress(PermissionError):  # a regular file
            self._poll.register(fd, select.EPOLLOUT | select.EPOLLET)

    def ready(self, timeout: int) -> bool:
        """Wait up to `timeout` milliseconds; False if that was not enough.

        Raises:
            Stopped: `stop` is readable.
        """
        seen = self._poll.poll(timeout / 1000)
        if any(fd == self._stop for fd, _ in seen):
            raise Stopped
        return bool(seen)

    def close(self) -> None:
        """Let go of the wait, not of the pipe."""
        self._poll.close()
