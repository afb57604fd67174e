"""Where the program begins and ends: signals, errors to exit statuses, the only exit.

A signal only raises a flag here; the operation looks at it where stopping is safe. A thread
tells the operator that it was heard, since a handler may not write.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from gpuckpt.cli import failure, settings, streams
from gpuckpt.cli.app import meant, parse
from gpuckpt.cli.context import Application
from gpuckpt.cli.render import Renderer
from gpuckpt.errors import GpuckptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from gpuckpt.cli.app import Invocation

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OUTPUT_LOST = 1


def main() -> None:
    """Run the command line and end the program."""
    streams.prepare()
    status = run(sys.argv[1:], last=True)
    streams.leave()
    sys.exit(status)


def run(argv: Sequence[str], *, last: bool = False) -> int:
    """Run one command line and return its exit status.

    `last`: the program ends with it, and no signal changes the status that was told.
    """
    try:
        found = parse(argv)
    except typer.TyperException as error:
        return _refused(argv, failure.usage(error, meant(argv)))
    except GpuckptError as error:
        return _refused(argv, error)
    except OSError as error:  # the text of --help or --version found no reader
        streams.Tolerant(sys.stderr).write(f"gpuckpt: stdout cannot be written: {error}\n")
        return _OUTPUT_LOST
    return found if isinstance(found, int) else _invoke(found, last=last)


def _refused(argv: Sequence[str], error: GpuckptError) -> int:
    """Answer a command line that could not be understood, in the form it seems to ask for."""
    Renderer(settings.guess(argv)).error(meant(argv), error)
    return error.exit_code


def _invoke(invocation: Invocation, *, last: bool) -> int:
    with Application(invocation.command, invocation.settings) as app, _signals(app, last=last):
        try:
            status = invocation.run(app)
        except GpuckptError as error:
            status = app.fail(error)
        except Exception as error:
            status = app.fail(failure.unforeseen(error, app.state_dir))
        return _delivered(app, status)


def _delivered(app: Application, status: int) -> int:
    """Say on stderr if the result could not be written, and do not call that a success."""
    broken = app.renderer.out.broken
    if broken is None or status != 0:
        return status
    app.reporter.warn(f"{app.command} is done, but its result could not be written: {broken}")
    return _OUTPUT_LOST


@contextmanager
def _signals(app: Application, *, last: bool) -> Iterator[None]:
    """Turn signals into requests to stop for as long as the command runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, bell = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(bell, False)
    teller = threading.Thread(target=_tell, args=(app, heard), daemon=True)

    def handler(signum: int, frame: FrameType | None) -> None:
        del frame
        if signum != signal.SIGTSTP:  # a stopped gpuckpt would leave the job frozen
            app.interrupts.request(signum)

    # nohup and a shell's `&` set signals to be ignored: they stay ignored
    caught = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in (*caught, signal.SIGTSTP)}
    old_bell = signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    teller.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_bell)
        for number, action in before.items():
            signal.signal(number, signal.SIG_IGN if last else action)
        os.close(bell)
        teller.join()
        os.close(heard)


def _tell(app: Application, heard: int) -> None:
    """Answer every signal with a line, until the pipe is closed."""
    asked = False
    while received := os.read(heard, 1):
        number = received[0]
        name = signal.Signals(number).name
        if number == signal.SIGTSTP:
            app.reporter.warn(f"{name} is ignored: stopping gpuckpt now could leave a job frozen")
        elif number not in _STOPPING:
            continue
        elif app.passing_on:
            app.reporter.note(f"{name} is passed on to the job")
        elif not asked:
            asked = True
            app.reporter.warn(f"{name}: stopping at the next safe place; please wait")
        else:
            app.reporter.warn(f"{name} again: {_at_stake(app.interrupts.left())}")


def _at_stake(left: tuple[str, ...]) -> str:
    """Say what an end at this very moment would leave; the operation goes on all the same."""
    if not left:
        return "still at it; kill -9 could leave a job locked"
    return (
        f"still at it; an end now (kill -9) would leave this to `gpuckpt repair`: {'; '.join(left)}"
    )
