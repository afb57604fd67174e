"""A watchful eye on a running CRIU: its question, its deadline, its log, and its end."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, Stopped
from gpuckpt.tools import criulog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

    from gpuckpt.tools.run import Child
    from gpuckpt.tools.streamer import Streamer

LARGEST_LOG = 256 << 20
TERM_SECONDS = 10.0
CURE_SECONDS = 20.0


class Hook:
    """The action script through which CRIU asks for a verdict, and the way back to it."""

    def __init__(self, work: Path, action: str) -> None:
        """Prepare a script in `work` that asks when CRIU reaches `action`."""
        self.work = work
        self.script = work / "hook"
        self.empty = work / "no-plugins"
        self._action = action
        self.decided = False

    def __enter__(self) -> Self:
        """Write the script and open the way it will talk through."""
        self.empty.mkdir(mode=0o700, exist_ok=True)
        self.ask, self._asked = os.pipe2(os.O_CLOEXEC)
        self._verdict, self._answer = os.pipe2(os.O_CLOEXEC)
        # CRIU closes descriptors it did not open, so the script goes through our /proc entries;
        # if we are dead they are gone, and the read ends with nothing.
        ours = f"/proc/{os.getpid()}/fd"
        self.script.write_text(
            "#!/bin/sh\n"
            f'[ "$CRTOOLS_SCRIPT_ACTION" = {self._action} ] || exit 0\n'
            f"echo ask >{ours}/{self._asked} || exit 1\n"
            f"read -r verdict <{ours}/{self._verdict} || exit 1\n"
            'exit "$verdict"\n'
        )
        self.script.chmod(0o700)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it: from here on every question is answered with no."""
        for fd in (self.ask, self._asked, self._verdict, self._answer):
            os.close(fd)

    def answer(self, *, yes: bool) -> None:
        """Let CRIU go on (yes) or turn back."""
        os.read(self.ask, 64)
        self.decided = yes
        os.write(self._answer, b"0\n" if yes else b"1\n")


@dataclass(frozen=True, slots=True)
class Watch:
    """What ends CRIU early, and the error that tells of it; `deadline` in seconds."""

    log: Path
    stop_fd: int
    deadline: float
    error: type[GpuckptError]


@dataclass(frozen=True, slots=True)
class Talk:
    """Everything said between CRIU and us in one run; `abort` ends the work of the server."""

    server: Streamer
    hook: Hook
    verdict: Callable[[], None]
    abort: Callable[[], None]
    watch: Watch


def supervise(child: Child, talk: Talk) -> None:
    """Wait for CRIU to end.

    Raises:
        Stopped: the watched descriptor said so before the verdict.
        GpuckptError: the first cause of a failure: the verdict's, the server's or CRIU's own.
    """
    server, hook, watch = talk.server, talk.hook, talk.watch
    poll = select.poll()
    for fd in (child.pidfd, server.fd, hook.ask, watch.stop_fd):
        poll.register(fd, select.POLLIN)
    ends = time.monotonic() + watch.deadline
    failure: BaseException | None = None
    while child.poll() is None:
        ready = {fd for fd, _ in poll.poll(500)}
        if hook.ask in ready:
            failure = _decide(talk)
            # the verdict is given: whatever CRIU does now, it must be left to finish it
            _wait_out(child, talk, patient=failure is None)
        elif failure := _reason_to_end(ready, server, watch, ends):
            _end(child, talk)
    failure = failure or server.failure
    if failure is not None:
        raise failure
    if child.poll() != 0 or not hook.decided:
        raise _failed(watch, child.poll())


def _decide(talk: Talk) -> BaseException | None:
    """Ask for the verdict and pass it on; CRIU gets its answer whatever happens."""
    try:
        with _abort_on_stop(talk):
            talk.verdict()
    except BaseException as why:  # noqa: BLE001 - raised again when CRIU has ended
        talk.hook.answer(yes=False)
        return why
    talk.hook.answer(yes=True)
    return None


@contextmanager
def _abort_on_stop(talk: Talk) -> Iterator[None]:
    """A verdict waits for the disk, which may hang with the job frozen: a signal ends that wait."""
    over = os.eventfd(0, os.EFD_CLOEXEC)

    def watch() -> None:
        if over not in select.select([talk.watch.stop_fd, over], [], [])[0]:
            talk.abort()

    thread = threading.Thread(target=watch, name="abort-on-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(over, 1)
        thread.join()
        os.close(over)


def _reason_to_end(
    ready: set[int], server: Streamer, watch: Watch, ends: float
) -> BaseException | None:
    if watch.stop_fd in ready:
        return Stopped("stopped by a signal")
    if server.fd in ready:
        return server.failure
    if time.monotonic() > ends:
        return watch.error(
            f"CRIU did not end within {watch.deadline:.0f} s and was ended", log=watch.log
        )
    # a short page file once made CRIU 4.2 write 3 GB of log a minute
    if watch.log.exists() and watch.log.stat().st_size > LARGEST_LOG:
        return watch.error("CRIU flooded its log and was ended", log=watch.log)
    return None


def _wait_out(child: Child, talk: Talk, *, patient: bool) -> None:
    """Wait for CRIU to act on its answer; after a "no" it has a bounded time for it."""
    if patient:
        child.wait()
    elif child.wait(TERM_SECONDS) is None:
        _end(child, talk)


def _end(child: Child, talk: Talk) -> None:
    """End CRIU, politely first: it fails by its broken stream and cures the tasks itself.

    Tasks resume whichever signal ends it (seen in 4.1.1, 4.2.1), but a killed CRIU leaves its
    parasite in them, and a process whose CUDA state is away cannot be brought back around that.
    """
    talk.abort()
    talk.server.hang_up()
    if child.wait(CURE_SECONDS) is not None:
        return
    child.terminate()
    if child.wait(TERM_SECONDS) is None:
        child.kill()
        child.wait()


def _failed(watch: Watch, status: int | None) -> GpuckptError:
    # before it opens its log, CRIU complains on its standard output only
    report = criulog.read(watch.log if watch.log.exists() else watch.log.with_name("criu.out"))
    ended = f"status {status}" if status is not None and status >= 0 else f"signal {-(status or 0)}"
    message = report.sentence or f"CRIU ended with {ended} and gave no reason that we know"
    return watch.error(message, hint=report.hint, log=watch.log, excerpt=report.lines)
