"""gpuckpt run: start a job so that it can be dumped later."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpuckpt.cli import values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import option
from gpuckpt.cli.page import Outcome, Page, Paragraph, Tone
from gpuckpt.errors import NotWritable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JobCommand = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND...",
        help="The program and its arguments, after --.",
        show_default=False,
    ),
]
Profile = Annotated[
    Literal["nccl"] | None,
    option(
        "--profile",
        metavar="KIND",
        help="Set the environment for a kind of job. nccl: several ranks that can be restored.",
        parser=values.choice("--profile", ("nccl",)),
    ),
]
JobLog = Annotated[
    str | None,
    option(
        "--log",
        metavar="PATH",
        help="File for the job's output, or a folder for stdout.log and stderr.log; one with / at "
        "its end is made. "
        "Default: where stdout goes if that is a file, else a new file in the current folder.",
        parser=values.log,
    ),
]
IoUring = Annotated[
    bool, option("--allow-io-uring", help="Let the job use io_uring: CRIU cannot dump a ring.")
]
PrintEnv = Annotated[
    bool,
    option("--print-env", help="Only print the variables, for those who start jobs otherwise."),
]


def run(
    app: Application,
    command: JobCommand = None,
    *,
    profile: Profile = None,
    log: JobLog = None,
    allow_io_uring: IoUring = False,
    print_env: PrintEnv = False,
) -> int:
    """Start COMMAND so that it can be dumped later, and wait for it.

    The job leads a session of its own, reads /dev/null, writes to files and gets no io_uring. Its
    output is shown here too, signals are passed on, and its exit status is that of gpuckpt run.
    """
    from gpuckpt.flow.launch import LaunchRequest, launch, settings
    from gpuckpt.tools.launcher import Launcher
    from gpuckpt.tools.run import Runner

    added = settings(profile)
    if print_env:
        return app.show(_environment(added))
    if not command:
        hint = "gpuckpt run [OPTIONS] -- python train.py"
        raise UsageError("there is no command to run", hint=hint)
    streams, ours = _streams(command[0], log)
    request = LaunchRequest(
        argv=tuple(command),
        environment={**os.environ, **added},
        streams=streams,
        state_dir=app.state_dir,
        io_uring=allow_io_uring,
    )
    app.passing_on = True
    if profile:
        _tell_cost(app, profile)
    shown = not (ours or app.settings.quiet or app.settings.json)
    status: int = launch(
        Launcher(Runner()), request, app.reporter, app.interrupts, _echo(app) if shown else None
    )
    if app.settings.json:
        return app.show(_ended(streams, status))
    return status


def _tell_cost(app: Application, profile: str) -> None:
    from gpuckpt.flow.profiles import PROFILES

    chosen = PROFILES[profile]
    app.reporter.note(f"profile {profile}: {chosen.purpose}")
    app.reporter.note(f"what it costs: {chosen.cost}")


def _streams(program: str, log: str | None) -> tuple[tuple[Path, Path], bool]:
    """Return the files for stdout and stderr, and whether they are our own stdout's.

    As with nohup, output that goes to a file already stays there; a folder gets one file each.
    """
    from gpuckpt.tools.launcher import share_own_file

    if log is not None:
        return _named(log), False
    out = share_own_file(sys.stdout.fileno())
    if out is not None:
        return (out, share_own_file(sys.stderr.fileno()) or out), True
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).name).strip("-.") or "job"
    path = values.path("--log")(f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.log")
    return (path, path), False


def _named(log: str) -> tuple[Path, Path]:
    """Return the files in a folder, which a slash makes, or twice the file that was named."""
    path = Path(log)
    if log.endswith("/"):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as why:
            raise NotWritable(
                f"{why.filename}: {why.strerror}", hint="Choose another --log."
            ) from why
    if path.is_dir():
        return path / "stdout.log", path / "stderr.log"
    return path, path


def _echo(app: Application) -> Callable[[int, bytes], None]:
    streams = {1: app.renderer.out, 2: app.renderer.err}
    make = codecs.getincrementaldecoder("utf-8")  # a character may be cut in two
    decoders = {number: make("backslashreplace") for number in streams}

    def write(number: int, data: bytes) -> None:
        streams[number].write(decoders[number].decode(data))
        streams[number].flush()

    return write


def _environment(added: Mapping[str, str]) -> Outcome:
    """Show the variables as lines a shell can take."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in added.items()]
    return Outcome(
        payload={"environment": dict(added)},
        page=Page("", Tone.NEUTRAL, tuple(map(Paragraph, lines))),
        quiet="\n".join(lines),
    )


def _ended(streams: tuple[Path, Path], status: int) -> Outcome:
    return Outcome(
        payload={"job_exit": status, "stdout": streams[0], "stderr": streams[1]},
        page=Page("", Tone.NEUTRAL),
        status=status,
    )
