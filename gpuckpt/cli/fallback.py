"""restore's options for when an image cannot be restored, and how what came of it is told."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpuckpt.cli import failure, moved, timeline, units, values
from gpuckpt.cli.options import option
from gpuckpt.cli.page import Fields, Findings, Outcome, Page, Tone
from gpuckpt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuckpt.flow.coldstart import Started
    from gpuckpt.flow.fallback import Back
    from gpuckpt.flow.returning.coldstart import Else
    from gpuckpt.location import Location

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def words(text: str) -> tuple[str, ...]:
    """Read a command and its arguments, as a shell splits them."""
    hint = "Write --else PROGRAM ARGUMENT..., as the last of the options."
    try:
        found = tuple(shlex.split(text))
    except ValueError as why:
        reason = f"{text!r} is no command: {str(why).lower()}"
        raise values.refuse("--else", reason, hint) from None
    if not found or not found[0] or "\0" in text:
        raise values.refuse("--else", "the command is empty", hint)
    return found


Try = Annotated[
    bool,
    option(
        "--try",
        help="Take the newest IMAGE that can be used, then older ones; IMAGE may be a folder of "
        "images of the job.",
    ),
]
ElseStart = Annotated[
    bool,
    option(
        "--else-start",
        help="If no image can be restored, start the command that was recorded, as its user, in "
        "its folder.",
    ),
]
ElseCommand = Annotated[
    str | None,
    option(
        "--else",
        metavar="CMD...",
        help="If no image can be restored, start this instead: all that follows is the command.",
        parser=words,
    ),
]
EnvFile = Annotated[
    list[Path] | None,
    option(
        "--env-file",
        metavar="FILE",
        help="For a start: NAME=VALUE lines that are added to the environment. May be given "
        "several times.",
        parser=values.path("--env-file", "the path of a file"),
    ),
]


def cold(
    *, start: bool, command: Sequence[str] | None, files: Iterable[Path], inherits: bool
) -> Else | None:
    """Return what is to be started if no image can be restored, None for nothing.

    Raises:
        UsageError: two things are, or a file of variables cannot be used.
    """
    from gpuckpt.flow.launch import settings
    from gpuckpt.flow.returning.coldstart import Else

    if start and command:
        raise UsageError(
            "--else and --else-start: only one can be started", hint="Leave one of them out."
        )
    if not (start or command):
        return None
    added = {name: value for path in files for name, value in _variables(path)}
    caller = {**os.environ, **settings(None)}
    return Else(tuple(command or ()), caller, added, inherits)


def one_image(images: Sequence[Location], *, several: bool) -> Location:
    """Return the image where there can be only one.

    Raises:
        UsageError: there are more.
    """
    if len(images) > 1 and not several:
        raise UsageError(
            f"{len(images)} images were named: --try takes the newest that can be used",
            hint="Name one image, or add --try.",
        )
    return images[0]


def _variables(path: Path) -> Iterator[tuple[str, str]]:
    """Read NAME=VALUE lines as a shell writes them, an `export` before them or not."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as why:
        raise UsageError(f"--env-file: {path} cannot be read: {why.strerror}") from why
    for number, line in enumerate(text.split("\n"), start=1):  # a value may hold other breaks
        if "\0" in line:
            raise _refuse(path, number, "it has a NUL byte")
        try:
            parts = shlex.split(line, comments=True)
        except ValueError as why:
            raise _refuse(path, number, str(why).lower()) from why
        parts = parts[1:] if parts[:1] == ["export"] else parts
        for part in parts[:1]:
            name, equals, value = part.partition("=")
            if not (equals and _VARIABLE.fullmatch(name)):
                raise _refuse(path, number, "it is no NAME=VALUE")
            if len(parts) > 1:
                raise _refuse(path, number, "a value with spaces must be quoted")
            yield name, value


def _refuse(path: Path, number: int, reason: str) -> UsageError:
    hint = "Write one NAME=VALUE a line, as `gpuckpt run --print-env` does."
    return UsageError(f"--env-file: {path}, line {number}: {reason}", hint=hint)


def payload(back: Back | None) -> dict[str, object]:
    """Return for programs what was tried, and what is lost by it."""
    started = back.started if back else None
    return {
        "cold": started is not None,
        "why": failure.payload(started.why) if started else None,
        "attempts": back.attempts if back else (),
        "lost": back.lost if back else None,
    }


def outcome(back: Back, started: Started, job_exit: int | None) -> Outcome:
    """Tell of a job that was started from its beginning."""
    from gpuckpt.image.identity import Identity

    start, why = started.start, started.why
    files = [str(one or start.log or "") for one in (start.stdout, start.stderr)]
    rows = [
        ("pid", str(started.root_pid)),
        ("command", shlex.join(start.argv)),
        ("why", f"{why.message} ({why.name}, exit {why.exit_code})"),
        *timeline.lost(back.lost, cold=True),
        *(("output", one) for one in dict.fromkeys(filter(None, files)) if not start.inherits),
        ("took", units.seconds(started.receipt.seconds)),
    ]
    if started.kept is not None:
        rows.append(("receipt", str(started.kept)))
    found = (Findings(why.findings),) if why.findings else ()
    result: dict[str, object] = {
        "image": started.image,
        "root_pid": started.root_pid,
        "pids": (started.root_pid,),
        "inside": None,
        "gpu_map": {},
        "aside": {},
        "identity": moved.payload(Identity()),
        "progress": "",
        "proved": None,
        "findings": (),
        "receipt": started.receipt,
        "expected": None,
        "image_id": "",
        "account": None,
        "kept": started.kept,
        "started": {
            "command": start.argv,
            "cwd": start.cwd,
            "uid": start.user.uid if start.user else None,
            "stdout": files[0] or None,
            "stderr": files[1] or None,
            "ended": started.ended,
        },
        **payload(back),
    }
    if job_exit is not None:
        result["job_exit"] = job_exit
    state = "has ended already, with status 0" if started.ended else "runs"
    title = f"not restored: the job was started from its beginning, and {state}"
    blocks = (Fields(tuple(rows)), failure.attempts(back.attempts), *found)
    return Outcome(
        payload=result,
        page=Page(title, Tone.WARNING, blocks),
        quiet=str(started.root_pid),
        status=job_exit or 0,
    )
