"""A process that makes driver calls for gpuckpt, seen from gpuckpt's side.

Owns its pipes: one ask at a time goes in, its answer comes out, both without ever blocking on a
process that hangs in the driver.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from gpuckpt.errors import Bug
from gpuckpt.tools.cuda_wire import HELPER, Answer, Ask, Hello, line, read_answer, read_hello
from gpuckpt.tools.run import PIPE, Child, Command

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuckpt.tools.run import Runner

_FAREWELL: Final = 5.0  # seconds; it ends at once unless it is armed or in a call
_CHUNK: Final = 65536
_left_behind: Final[list[Child]] = []  # still in a call; kept so that their end can be collected


class Caller:
    """One call process: started, greeted, asked, let go. It is never killed."""

    def __init__(self, runner: Runner, program: str | None) -> None:
        """Start it; `program` makes it use cuda-checkpoint in place of the bindings."""
        more = ("--program", program) if program else ()
        path = os.pathsep.join(entry for entry in sys.path if Path(entry).is_absolute())
        self._child = runner.start(
            Command(
                # -P: the folder gpuckpt was called in must not be searched for modules, as root
                (sys.executable, "-P", "-m", HELPER, *more),
                env={"PYTHONPATH": path},
                cwd=Path("/"),
                stdin=PIPE,
                stdout=PIPE,
            )
        )
        self._asks = _pipe(self._child.stdin)
        self._said = _pipe(self._child.stdout)
        self._buffer = b""
        self._next_id = 0
        self._since = time.monotonic()
        self._until = 0.0
        self._released = False
        self.hello: Hello | None = None
        self.asked: Ask | None = None
        self.answer: Answer | None = None
        self.lost = False

    @property
    def waiting(self) -> bool:
        """Whether it owes us a greeting or an answer."""
        return not self.lost and (self.hello is None or self.asked is not None)

    @property
    def free(self) -> bool:
        """Whether it can be asked."""
        return not self.lost and not self.waiting

    @property
    def seconds(self) -> float:
        """From the last ask, or the start, to the answer or to now."""
        return (self._until or time.monotonic()) - self._since

    def fileno(self) -> int:
        """Return what becomes readable when it says something or ends."""
        return self._said.fileno()

    def ask(self, ask: Ask) -> None:
        """Ask for one thing; there must be no answer outstanding."""
        self._next_id += 1
        self.asked = msgspec.structs.replace(ask, id=self._next_id)
        self.answer = None
        self._since = time.monotonic()
        self._until = 0.0
        try:
            self._asks.write(line(self.asked))
        except OSError:
            self.lost = True

    def listen(self) -> None:
        """Take in what it has said so far."""
        try:
            chunk = os.read(self.fileno(), _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.lost = True
            return
        self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        for raw in lines:
            self._take(raw)

    def _take(self, raw: bytes) -> None:
        try:
            if self.hello is None:
                self.hello = read_hello(raw)
                return
            answer = read_answer(raw)
        except msgspec.DecodeError:
            self.lost = True
            return
        if self.asked is not None and answer.id == self.asked.id:
            self.asked = None
            self.answer = answer
            self._until = time.monotonic()

    def release(self) -> None:
        """Say that we are done, unless a call has not come back: that one keeps its way back."""
        if self.free:
            with suppress(OSError):
                self._asks.write(line(Ask(id=0, action="release", pid=0)))
        self._released = self.free or self.lost

    def let_go(self) -> None:
        """Close the pipes, and wait for the end if it is near."""
        self._child.close()
        if not self._released or self._child.wait(_FAREWELL) is None:
            _left_behind[:] = [child for child in _left_behind if child.poll() is None]
            _left_behind.append(self._child)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise Bug("a call process was started without its pipes")
    os.set_blocking(stream.fileno(), False)
    return stream


def listen(callers: Collection[Caller], timeout: float) -> None:
    """Wait until none of the callers owes us anything, `timeout` seconds at most."""
    deadline = time.monotonic() + timeout
    while waiting := {caller.fileno(): caller for caller in callers if caller.waiting}:
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        left = deadline - time.monotonic()
        if left <= 0:
            return
        for fd, _ in poll.poll(left * 1000):
            waiting[fd].listen()
