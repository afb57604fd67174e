"""One after the other, where CRIU would take the same names for two jobs.

For files that have lost their names, semaphores above all, CRIU 4.2.1 makes link_remap.N beside
them, at a dump and at a restore, and counts anew in every run: two jobs get the same names. So the
lock is the host's, whatever state directories there are.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import NotWritable, ProcessUnfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.model import Process

_NAME: Final = "names.lock"
STOPPED_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1


@contextmanager
def turn(operation: Operation, *, needed: bool) -> Iterator[bool]:
    """Keep others out who need such names, once those who came first are done.

    The lock ends with this process, however that ends. Gives whether there was anybody to wait for:
    then what was seen before may be old.

    Raises:
        Interrupted: a signal came while waiting.
        NotWritable: the lock cannot be made.
        ProcessUnfit: whoever has it was stopped, and does not go on.
    """
    if not needed:
        yield False
        return
    fd = _opened(operation)
    try:
        if waited := not _taken(fd):
            with operation.record.phase("turn", "others with files without a name") as step:
                _wait(operation, fd, step.say)
        yield waited
    finally:
        os.close(fd)


def _wait(operation: Operation, fd: int, say: Callable[[str], None]) -> None:
    """Wait however long the others take, for one of them may write a terabyte; say who it is."""
    told: Process | None = None
    stopped_since = time.monotonic()
    while not _taken(fd):
        operation.interrupts.check()
        first = _holder(operation)
        if first is None or not first.stopped:
            stopped_since = time.monotonic()
        elif time.monotonic() - stopped_since >= STOPPED_SECONDS:
            raise ProcessUnfit(
                f"another gpuckpt (pid {first.pid}) works on files without a name, comes first, "
                "and is stopped",
                hint=f"Continue it (kill -CONT {first.pid}), or end it.",
            )
        if first is not None and (told is None or told.ref != first.ref):
            told = first
            say(f"another gpuckpt (pid {first.pid}) works on files without a name")
        time.sleep(_POLL_SECONDS)


def _holder(operation: Operation) -> Process | None:
    """Return who has the lock; None if it has been let go of, or cannot be seen from here."""
    tools = operation.tools
    locks = tools.files.locks(str(tools.run_dir / _NAME))
    found = (tools.proc.process(one.pid) for one in locks if one.pid > 0)
    return next((one for one in found if one is not None), None)


def _opened(operation: Operation) -> int:
    path = operation.tools.run_dir / _NAME
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise NotWritable(
            f"{path} cannot be written: {why.strerror}", hint="Make room there, or remove it."
        ) from why


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
