"""Starting a job from its beginning in place of a restore: as its user, waiting for a last word.

Its process is made first and stands before its program until it is told to go on. So it can be
written down before it runs, and ends by itself if this process does not live to do so.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from msgspec import field

from gpuckpt.tools import launch
from gpuckpt.tools.run import Command
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuckpt.tools.run import Child, Runner

# until its folder, files and program are opened: a server of files may be slow
START_SECONDS: Final = 30.0
_LONGEST: Final = 4096


class Account(Value, frozen=True):
    """A user of this host: the groups he is in, and what a login would set of an environment."""

    groups: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class User(Value, frozen=True):
    """Whom a job runs as; `groups` are the supplementary ones."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class Start(Value, frozen=True):
    """What to start, and how.

    `program` is the path to be executed, "" to look for the first word in PATH. `user`, `umask`
    and `cwd` None: as we have them. `stdout` and `stderr` are files that are appended to; "" for
    `log`, which is made. With `inherits` all three streams are ours.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    program: str = ""
    user: User | None = None
    umask: int | None = None
    cwd: str | None = None
    stdout: str = ""
    stderr: str = ""
    log: Path | None = None
    inherits: bool = False


class Ready:
    """A job that stands before its program."""

    def __init__(self, child: Child, go: int, report: int) -> None:
        """Take over the process and our ends of its pipes."""
        self.child = child
        self._go, self._report = go, report

    @property
    def pid(self) -> int:
        """Its pid, which it keeps."""
        return self.child.pid

    def go(self, stop_fd: int) -> str:
        """Let it start; empty if its program runs, else why it does not: then it has ended.

        `stop_fd` becoming readable, it is not waited for any longer.
        """
        with suppress(BrokenPipeError):  # it has ended, and says why
            os.write(self._go, b"1")
        told, ends = b"", time.monotonic() + START_SECONDS
        while True:
            left = ends - time.monotonic()
            readable = select.select([self._report, stop_fd], [], [], max(0.0, left))[0]
            if self._report not in readable:
                self.give_up()
                return "it was stopped" if readable else f"no answer within {START_SECONDS:g} s"
            if not (piece := os.read(self._report, _LONGEST)):
                break
            told += piece
        if told:
            self.child.wait()
        self.close()
        return told.decode("utf-8", "backslashreplace").strip()

    def give_up(self) -> None:
        """End it, whatever it does, and wait for it."""
        self.close()
        self.child.kill()
        self.child.wait()

    def status(self) -> int | None:
        """Return its exit status (negative for a signal), None while it runs."""
        return self.child.poll()

    def close(self) -> None:
        """Let go of the pipes: a process that still waits at them ends."""
        for fd in (self._go, self._report):
            if fd >= 0:
                os.close(fd)
        self._go = self._report = -1


class Starter:
    """Starts jobs as children of this process, each in a session of its own."""

    def __init__(self, runner: Runner) -> None:
        """Use this runner."""
        self._runner = runner

    def account(self, uid: int, gid: int) -> Account:
        """Return what is known of a user here; a job may run as one that nobody knows."""
        try:
            known = pwd.getpwuid(uid)
        except KeyError:
            return Account(())
        groups = tuple(os.getgrouplist(known.pw_name, gid))
        own = {"HOME": known.pw_dir, "USER": known.pw_name, "LOGNAME": known.pw_name}
        return Account(groups, own)

    def ready(self, what: Start) -> Ready:
        """Make the process, and have it wait for `Ready.go`.

        Raises:
            OSError: its log cannot be made.
        """
        with ExitStack() as ours:
            streams = _streams(what, ours)
            theirs_go, go = os.pipe()
            ours.callback(os.close, theirs_go)
            report, theirs_report = os.pipe()
            ours.callback(os.close, theirs_report)
            about = json.dumps(_about(what, theirs_go, theirs_report))
            stub = (sys.executable, "-I", "-S", launch.__file__, "--without-io-uring")
            command = Command(
                (*stub, "--as", about, "--", *what.argv),
                env=dict(what.environment),
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                pass_fds=(theirs_go, theirs_report),
            )
            try:
                child = self._runner.start(command)
            except BaseException:
                os.close(go)
                os.close(report)
                raise
        return Ready(child, go, report)


def _streams(what: Start, files: ExitStack) -> tuple[int | None, int | None, int | None]:
    """Return what it begins with; in a session of its own it could not read from our terminal."""
    if what.inherits:
        return None if os.isatty(0) else 0, 1, 2
    if what.log is None:
        return None, None, None
    what.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = os.open(what.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    files.callback(os.close, log)
    return None, log, log


def _about(what: Start, go: int, report: int) -> dict[str, object]:
    """Return what launch.py has to know."""
    user = what.user
    return {
        "go": go,
        "report": report,
        "program": what.program,
        "uid": user.uid if user else None,
        "gid": user.gid if user else None,
        "groups": list(user.groups) if user else None,
        "umask": what.umask,
        "cwd": what.cwd,
        "stdout": what.stdout,
        "stderr": what.stderr,
    }
