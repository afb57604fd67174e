"""The one door outside: how gpuckpt starts a program, and what it hears back.

Every child gets a short environment, /dev/null as its stdin unless told otherwise, and a session
of its own, so that a terminal's Ctrl-C reaches gpuckpt alone, which then decides what happens.
Nothing else in the project may start a program.
"""

from __future__ import annotations

import logging
import math
import os
import select
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.errors import Stopped, ToolFailed, ToolMissing, ToolTimeout
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_log = logging.getLogger(__name__)

PIPE: Final = subprocess.PIPE
_LAST_WORDS: Final = 5.0
_STOP_POLL: Final = 0.1  # seconds
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Command(Value, frozen=True):
    """A program to start.

    `timeout` is in seconds and counts for `Runner.run` only; None waits for ever. `env` is added
    to the short environment. `stdin` is a descriptor, PIPE, bytes to be fed (`Runner.run` only) or
    None for /dev/null; `stdout` and `stderr` a descriptor, PIPE, or None: captured by
    `Runner.run`, /dev/null for `Runner.start`. `merge` sends stderr where stdout goes. With
    `our_session` the program gets a process group of its own only, and keeps our terminal.
    """

    argv: tuple[str, ...]
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    stdin: bytes | int | None = None
    stdout: int | None = None
    stderr: int | None = None
    merge: bool = False
    pass_fds: tuple[int, ...] = ()
    our_session: bool = False

    @property
    def line(self) -> str:
        """The command line as a shell would take it."""
        return shlex.join(self.argv)


class Finished(Value, frozen=True):
    """A program that has ended; `returncode` is negative for a signal."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float


class Child:
    """A program that runs. `pidfd` becomes readable when it ends.

    Leaving the context lets go of pipes and pidfd; it neither ends the program nor waits for it.
    """

    def __init__(self, command: Command, popen: subprocess.Popen[bytes]) -> None:
        """Take over a program that was just started."""
        self.command = command
        self._popen = popen
        self.pidfd = os.pidfd_open(popen.pid)

    def __enter__(self) -> Self:
        """Give the child for as long as the context lasts."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what the child left open."""
        self.close()

    @property
    def pid(self) -> int:
        """The program's pid, not reused before its end was seen by `poll` or `wait`."""
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        """What the program reads, if it was asked for as a PIPE; unbuffered."""
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """What the program prints, if it was asked for as a PIPE; unbuffered."""
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """What the program complains about, if it was asked for as a PIPE; unbuffered."""
        return self._popen.stderr

    def poll(self) -> int | None:
        """Return the exit status (negative for a signal), None while the program runs."""
        return self._popen.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait at most `timeout` seconds; the exit status, None if the program still runs."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM); nothing if it has ended."""
        self._popen.terminate()

    def kill(self) -> None:
        """End the program (SIGKILL); nothing if it has ended."""
        self._popen.kill()

    def close(self) -> None:
        """Close the pipes and the pidfd; may be called again."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Runner:
    """Starts programs."""

    def run(self, command: Command, *, check: bool = True, stop_fd: int | None = None) -> Finished:
        """Run a program to its end.

        Args:
            command: what to run.
            check: whether an exit status other than 0 is an error.
            stop_fd: becoming readable, it ends the program.

        Raises:
            ToolMissing: there is no such program, or it may not be executed.
            ToolTimeout: it did not end in time; it and its process group were killed.
            ToolFailed: it ended with another status than 0, and `check` is on.
            Stopped: `stop_fd` said so; the program and its process group were killed.
        """
        started = time.monotonic()
        feed = command.stdin if isinstance(command.stdin, bytes) else None
        popen = _spawn(command, unset=subprocess.PIPE)
        with popen:
            try:
                out, err = _await_end(popen, feed, command.timeout, stop_fd)
            except BaseException as why:
                out, err = _end_group(popen)
                if isinstance(why, subprocess.TimeoutExpired):
                    raise ToolTimeout(
                        f"{command.argv[0]} gave no answer within {command.timeout:g} s",
                        argv=command.argv,
                        stdout=_text(out),
                        stderr=_text(err),
                    ) from why
                raise
        seconds = time.monotonic() - started
        done = Finished(command.argv, popen.returncode, _text(out), _text(err), seconds)
        _log.debug("%s: status %d after %.3f s", command.line, done.returncode, seconds)
        if check and done.returncode != 0:
            raise ToolFailed(
                f"{command.argv[0]} {_ended(done.returncode)}",
                argv=done.argv,
                returncode=done.returncode,
                stdout=done.stdout,
                stderr=done.stderr,
            )
        return done

    def start(self, command: Command) -> Child:
        """Start a program and return at once.

        Raises:
            ToolMissing: there is no such program, or it may not be executed.
        """
        if isinstance(command.stdin, bytes):
            raise TypeError("start() feeds no bytes: ask for stdin=PIPE and write them")
        child = Child(command, _spawn(command, unset=subprocess.DEVNULL))
        _log.debug("%s: started as pid %d", command.line, child.pid)
        return child


def _spawn(command: Command, unset: int) -> subprocess.Popen[bytes]:
    """Start a program; output streams that the command leaves open become `unset`."""
    stdin = subprocess.PIPE if isinstance(command.stdin, bytes) else command.stdin
    try:
        return subprocess.Popen(
            command.argv,
            bufsize=0,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=unset if command.stdout is None else command.stdout,
            stderr=_stderr(command, unset),
            cwd=command.cwd,
            env=_environment() | dict(command.env),
            start_new_session=not command.our_session,
            process_group=0 if command.our_session else None,
            pass_fds=command.pass_fds,
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as why:
        raise ToolMissing(_why_not(command, why), argv=command.argv) from why


def _await_end(
    popen: subprocess.Popen[bytes], feed: bytes | None, timeout: float | None, stop_fd: int | None
) -> tuple[bytes, bytes]:
    """Return all the program prints; look at `stop_fd` now and then."""
    if stop_fd is None:
        return popen.communicate(feed, timeout)
    ends = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return popen.communicate(feed, min(_STOP_POLL, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            feed = None  # all of it is in the pipe's hands since the first call
            if time.monotonic() >= ends:
                raise
            if select.select([stop_fd], [], [], 0)[0]:
                raise Stopped("stopped by a signal") from None


def _stderr(command: Command, unset: int) -> int:
    if command.merge:
        return subprocess.STDOUT
    return unset if command.stderr is None else command.stderr


def _environment() -> dict[str, str]:
    """Only what programs need: nothing of the caller's set-up may change what they do."""
    env = {
        "PATH": os.environ.get("PATH", _SYSTEM_PATH),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
    }
    if "TZ" in os.environ:
        env["TZ"] = os.environ["TZ"]
    return env


def _why_not(command: Command, why: OSError) -> str:
    if command.cwd is not None and not command.cwd.is_dir():
        return f"the working folder {command.cwd} for {command.argv[0]} is not there"
    if isinstance(why, PermissionError):
        return f"{command.argv[0]} may not be executed"
    return f"{command.argv[0]} was not found"


def _ended(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was ended by {name}"


def _end_group(popen: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Kill the program and what it started; return what they had still printed."""
    # Not reaped so far, or the number could be another's; a zombie leader keeps its group alive.
    if popen.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
    try:
        return popen.communicate(timeout=_LAST_WORDS)
    except subprocess.TimeoutExpired:  # a grandchild in a session of its own holds the pipes
        return b"", b""


def _text(stream: bytes | None) -> str:
    return (stream or b"").decode("utf-8", "replace")
