"""Our terminal's foreground, which a restored shell job takes: Ctrl-C must go on reaching us."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_ours(fd: int | None) -> bool:
    """Whether a descriptor is the controlling terminal of our session."""
    if fd is None:
        return False
    try:
        return os.tcgetpgrp(fd) > 0
    except OSError:
        return False


@contextmanager
def kept(fd: int | None) -> Iterator[None]:
    """Put back the terminal's foreground process group, whoever was given it meanwhile."""
    if fd is None or not is_ours(fd):
        yield
        return
    before = os.tcgetpgrp(fd)
    try:
        yield
    finally:
        # from the background this call would stop us, were the signal not blocked
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        with suppress(OSError):
            os.tcsetpgrp(fd, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
