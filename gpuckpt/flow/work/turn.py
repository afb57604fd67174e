"""One after the other, where CRIU would take the same names for two jobs.

For files that have lost their names, semaphores above all, CRIU 4.2.1 makes link_remap.N beside
them, at a dump and at a restore, and counts anew in every run: two jobs get the same names.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import NotWritable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.work.operation import Operation

_NAME: Final = "names.lock"
_POLL_SECONDS: Final = 0.1


@contextmanager
def turn(operation: Operation, *, needed: bool) -> Iterator[bool]:
    """Keep others out who need such names, once those who came first are done.

    The lock ends with this process, however that ends. Gives whether there was anybody to wait for:
    then what was seen before may be old.

    Raises:
        Interrupted: a signal came while waiting.
        NotWritable: the state directory cannot be written.
    """
    if not needed:
        yield False
        return
    fd = _opened(operation)
    try:
        if waited := not _taken(fd):
            with operation.record.phase("turn", "others with files without a name"):
                while not _taken(fd):
                    operation.interrupts.check()
                    time.sleep(_POLL_SECONDS)
        yield waited
    finally:
        os.close(fd)


def _opened(operation: Operation) -> int:
    operation.journal.make()
    path = operation.tools.state_dir / _NAME
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise NotWritable(
            f"{path} cannot be written: {why.strerror}",
            hint="Make room there, or name another place in GPUCKPT_STATE_DIR.",
        ) from why


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
