"""Starting a job so that it can be dumped: own session, files as its streams, no io_uring."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.tools import launch
from gpuckpt.tools.run import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuckpt.tools.run import Child, Runner


class Launcher:
    """Starts jobs as children of this process."""

    def __init__(self, runner: Runner) -> None:
        """Use this runner."""
        self._runner = runner

    def start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[Path, Path],
        *,
        io_uring: bool,
    ) -> Child:
        """Start a program as the leader of a session, appending to the files of `streams`.

        The program is looked for in PATH by the child, which ends with 127 or 126 if it is not
        there or may not be executed.

        Raises:
            OSError: a file of `streams` cannot be opened for appending.
        """
        out, err = streams
        without = () if io_uring else ("--without-io-uring",)
        # -I, -S: what the job's environment says of Python is the job's business
        stub = (sys.executable, "-I", "-S", launch.__file__, *without, "--", *argv)
        with out.open("ab") as stdout, err.open("ab") as stderr:
            return self._runner.start(
                Command(stub, env=dict(environment), stdout=stdout.fileno(), stderr=stderr.fileno())
            )


def has_ended(child: Child) -> bool:
    """Whether a job that was started here has ended; its pid stays taken until it is waited for."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def share_own_file(fd: int) -> Path | None:
    """Return the regular file that a descriptor of ours writes to, None if it is none.

    What we write there ourselves goes to its end from now on, as what the job writes does.
    """
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not path.samefile(f"/proc/self/fd/{fd}"):
            return None
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    except OSError:  # closed, or its name is gone
        return None
    return path
