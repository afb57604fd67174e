"""Ending a wait that may be long, when a descriptor says so."""

from __future__ import annotations

import os
import select
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def ended_by(fd: int, end: Callable[[], None]) -> Iterator[None]:
    """Call `end`, in another thread, if `fd` becomes readable before the context is left."""
    over = os.eventfd(0, os.EFD_CLOEXEC)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(over, select.POLLIN)

    def watch() -> None:
        if over not in {ready for ready, _ in poll.poll()}:
            end()

    thread = threading.Thread(target=watch, name="ended-by", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(over, 1)
        thread.join()
        os.close(over)
