"""run: start a job so that it can be dumped later, and stay as its parent until it has ended.

Most of what makes a job impossible to dump is how it was started: a pipe as stdout, somebody's
terminal, an io_uring ring, GPU memory that processes share. Here none of it comes to be.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import NotWritable
from gpuckpt.flow.profiles import PROFILES
from gpuckpt.flow.work.departure import dump_of, told
from gpuckpt.tools.launcher import has_ended
from gpuckpt.tools.pidspace_init import deliver
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.tools.launcher import Launcher
    from gpuckpt.tools.run import Child

POLL_SECONDS = 0.05
CHUNK = 1 << 16
# for whoever looks into /proc/PID/environ: how the job was started
MARK: Final = "GPUCKPT_STARTED"


class LaunchRequest(Value, frozen=True):
    """What to start, with which settings, and the files that stdout and stderr are appended to.

    `state_dir` is where a dump of the job would have its journal.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    streams: tuple[Path, Path]
    state_dir: Path
    io_uring: bool = False


def settings(profile: str | None) -> dict[str, str]:
    """Return the variables that `run` adds to a job's environment; `profile` None: no more."""
    chosen = PROFILES[profile].environment if profile else {}
    return {MARK: profile or "plain", **chosen}


def launch(
    launcher: Launcher,
    request: LaunchRequest,
    reporter: Reporter,
    interrupts: Interrupts,
    echo: Callable[[int, bytes], None] | None,
) -> int:
    """Start the job, pass signals on to it, and return its exit status (128 + n for a signal).

    `echo` is handed what the job appends to its stdout (1) and stderr (2); None: nobody listens.

    Raises:
        NotWritable: a file for its output cannot be made.
    """
    try:
        for path in request.streams:
            if path.is_fifo() or path.is_socket():  # opening one waits for whoever reads it
                raise NotWritable(f"{path} is no file", hint="Choose another --log.")
        tails = _tails(request.streams) if echo else {}
        child = launcher.start(
            request.argv, request.environment, request.streams, io_uring=request.io_uring
        )
    except OSError as why:
        raise NotWritable(f"{why.filename}: {why.strerror}", hint="Choose another --log.") from why
    with child, ExitStack() as open_files:
        for tail in tails.values():
            open_files.enter_context(tail)
        reporter.note(
            f"process {child.pid} is the job's root, for `gpuckpt dump {child.pid}`; output in "
            + " and ".join(dict.fromkeys(map(str, request.streams)))
        )
        copy = partial(_copy, tails, echo)
        return stay_with(child, request.state_dir, reporter, interrupts, copy)


def stay_with(
    child: Child,
    state_dir: Path,
    reporter: Reporter,
    interrupts: Interrupts,
    meanwhile: Callable[[int], None] = lambda _most: None,
) -> int:
    """Wait for a job that is our child, pass signals on, and return its exit status.

    `meanwhile` is called now and then, with how many bytes it may take its time for.
    """
    while not has_ended(child):
        if (signum := interrupts.take()) is not None:
            deliver(child.pid, signum)
        meanwhile(64 * CHUNK)
        time.sleep(POLL_SECONDS)
    meanwhile(sys.maxsize)
    # before it is waited for: its dump is at work until the pid is free
    dump = dump_of(state_dir, child.pid)
    status = child.wait() or 0
    if dump and dump.step == "commit" and status == -signal.SIGKILL:
        reporter.note(told(dump.image))
    return status if status >= 0 else 128 - status


def _tails(streams: tuple[Path, Path]) -> dict[int, BinaryIO]:
    """Open the ends of the files for reading; one that serves both streams only once.

    A device is left out: some give bytes that nobody wrote, without end.
    """
    found: dict[int, BinaryIO] = {}
    for number, path in enumerate(dict.fromkeys(streams), start=1):
        path.touch()
        if not path.is_file():
            continue
        file = path.open("rb", buffering=0)
        file.seek(0, 2)
        found[number] = file
    return found


def _copy(
    tails: Mapping[int, BinaryIO],
    echo: Callable[[int, bytes], None] | None,
    most: int,
) -> None:
    """Hand on what was appended; `most` bytes of each file, for signals must get their turn."""
    for number, file in tails.items():
        left = most
        while echo is not None and left > 0 and (data := file.read(CHUNK)):
            echo(number, data)
            left -= len(data)
