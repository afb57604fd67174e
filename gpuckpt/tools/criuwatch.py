"""A watchful eye on a running CRIU: its question, its deadline, its log, and its end."""

from __future__ import annotations

import os
import select
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, Stopped
from gpuckpt.tools import criuend
from gpuckpt.tools.stopping import ended_by
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

    from gpuckpt.tools.criuend import Watch
    from gpuckpt.tools.run import Child
    from gpuckpt.tools.streamer import Streamer

# what is kept of a log that grew beyond it: its beginning, and whatever comes last
KEPT_LOG = 1 << 20
TERM_SECONDS = 10.0
_POLL_SECONDS = 0.2


class Hook:
    """The action script through which CRIU asks for a verdict, and the way back to it."""

    def __init__(self, work: Path, action: str, door: str = "") -> None:
        """Prepare a script in `work` that asks when CRIU reaches `action`.

        CRIU closes descriptors it did not open, so the script goes through /proc entries: ours,
        unless `door` names others that it can see. If we are dead, the read ends with nothing.
        """
        self.work = work
        self.script = work / "hook"
        self.plugins = work / "plugins"
        self._action = action
        self._door = door or f"/proc/{os.getpid()}/fd"
        self.decided = False

    def __enter__(self) -> Self:
        """Write the script and open the way it will talk through."""
        self.plugins.mkdir(mode=0o700, exist_ok=True)
        self.ask, self._asked = os.pipe2(os.O_CLOEXEC)
        self._verdict, self._answer = os.pipe2(os.O_CLOEXEC)
        self.script.write_text(
            "#!/bin/sh\n"
            f'[ "$CRTOOLS_SCRIPT_ACTION" = {self._action} ] || exit 0\n'
            f"echo ask >{self._door}/{self._asked} || exit 1\n"
            f"read -r verdict <{self._door}/{self._verdict} || exit 1\n"
            'exit "$verdict"\n'
        )
        self.script.chmod(0o700)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it: from here on every question is answered with no."""
        for fd in (self.ask, self._asked, self._verdict, self._answer):
            os.close(fd)

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors that the script talks through."""
        return self._asked, self._verdict

    def answer(self, *, yes: bool) -> None:
        """Let CRIU go on (yes) or turn back."""
        os.read(self.ask, 64)
        self.decided = yes
        os.write(self._answer, b"0\n" if yes else b"1\n")


class Talk(Value, frozen=True):
    """Everything said between CRIU and us in one run; `abort` ends the work of the server."""

    server: Streamer
    hook: Hook
    verdict: Callable[[], None]
    abort: Callable[[], None]
    watch: Watch


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a folder for a child to find under /proc/self/fd.

    CRIU cuts the socket's path, made from -D as given, at 107 bytes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


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
    oom_kills = criuend.oom_kills()
    failure: BaseException | None = None
    while child.poll() is None:
        ready = {fd for fd, _ in poll.poll(500)}
        if hook.ask in ready:
            failure = _decide(talk)
            # the verdict is given: whatever CRIU does now, it must be left to finish it
            _wait_out(child, talk, patient=failure is None)
        elif failure := _reason_to_end(ready, server, watch, ends):
            _end(child, talk)
            _cut(watch)
    failure = failure or server.failure
    if failure is None and (child.poll() != 0 or not hook.decided):
        failure = criuend.failed(watch, child.poll(), oom_kills)
    if failure is not None:
        talk.abort()  # what CRIU left half-made may hold the other ends of the pipes
        raise _told(failure, watch)


def _told(failure: BaseException, watch: Watch) -> BaseException:
    """Say of a conversation that went wrong what it means for the job."""
    if type(failure) is GpuckptError:
        return watch.error(failure.message, hint=failure.hint, log=watch.log)
    return failure


def _decide(talk: Talk) -> BaseException | None:
    """Ask for the verdict and pass it on; CRIU gets its answer whatever happens."""
    try:
        # it waits for the disk, which may hang with the job frozen
        with ended_by(talk.watch.stop_fd, talk.abort):
            talk.verdict()
    except BaseException as why:  # noqa: BLE001 - raised again when CRIU has ended
        talk.hook.answer(yes=False)
        return why
    talk.hook.answer(yes=True)
    return None


def _reason_to_end(
    ready: set[int], server: Streamer, watch: Watch, ends: float
) -> BaseException | None:
    if watch.stop_fd in ready:
        return Stopped("stopped by a signal")
    if server.fd in ready:
        return server.failure
    if time.monotonic() > ends:
        return criuend.out_of_time(watch)
    # a short page file once made CRIU 4.2 write 3 GB of log a minute
    if _too_large(watch):
        return criuend.flooded(watch, _size(watch.log))
    return None


def _too_large(watch: Watch) -> bool:
    """Whether the log is larger than allowed, or takes more than half of what its disk had free."""
    size = _size(watch.log)
    return size > min(watch.largest_log, (size + _room(watch.log)) // 2)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _room(log: Path) -> int:
    try:
        found = os.statvfs(log.parent)
    except OSError:
        return criuend.LARGEST_LOG
    return found.f_bavail * found.f_frsize


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
    if _ends_within(child, talk.watch, talk.watch.cure):
        return
    child.terminate()
    if not _ends_within(child, talk.watch, min(TERM_SECONDS, talk.watch.cure)):
        child.kill()
        child.wait()


def _ends_within(child: Child, watch: Watch, seconds: float) -> bool:
    """Wait for CRIU's end, and keep what it logs meanwhile from filling the disk.

    A limit by RLIMIT_FSIZE would hit the files that CRIU makes for the job as well, and end a
    CRIU that has its parasite in the job. The log is opened for appending, so it can be cut.
    """
    ends = time.monotonic() + seconds
    while child.wait(_POLL_SECONDS) is None:
        if time.monotonic() >= ends:
            return False
        _cut(watch)
    return True


def _cut(watch: Watch) -> None:
    """Keep the start of a log that has grown too large."""
    if _too_large(watch):
        with suppress(OSError):
            os.truncate(watch.log, KEPT_LOG)
