"""Signals as facts to be looked at between steps, never as exceptions in the middle of one.

A driver call or a rename that is cut short leaves the job in a state nobody knows. So a signal
only raises a flag; operations look at it where stopping is safe, and waits watch `fd`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import finalize

from gpuckpt.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable


class Interrupts:
    """The signals that asked an operation to stop. `fd` becomes readable at the first one.

    `left` tells, in words and from any thread, what would be left if the program ended now.
    """

    def __init__(self) -> None:
        """Start with none pending."""
        self.pending: int | None = None
        self.left: Callable[[], tuple[str, ...]] = tuple
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        finalize(self, os.close, self.fd).atexit = False  # threads may still wait for it then

    def request(self, signum: int) -> None:
        """Ask for a stop at the next safe place; the first signal is the one reported."""
        if self.pending is None:
            self.pending = signum
        os.eventfd_write(self.fd, 1)

    def check(self) -> None:
        """Raise Interrupted if a stop was asked for."""
        if self.pending is not None:
            raise Interrupted(self.pending)

    def take(self) -> int | None:
        """Return the pending signal and forget it: for a caller that passes signals on."""
        signum, self.pending = self.pending, None
        if signum is not None:
            os.eventfd_read(self.fd)
        return signum
