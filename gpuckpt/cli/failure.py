"""Errors as a page: what failed, what became of the job, what stopped it, what to do next.

Also the two translations into our own errors: from the parser's complaints, and from anything
nobody foresaw, whose traceback is kept in a file.
"""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.cli import gpus
from gpuckpt.cli.page import Block, Fields, Findings, Page, Table, Tone, Verbatim
from gpuckpt.errors import Bug, GpuckptError, UsageError

if TYPE_CHECKING:
    from typer import TyperException

    from gpuckpt.model import Attempt, Condition

_TAIL = 3


def page(doing: str, error: GpuckptError) -> Page:
    """Build the page for an error of the command `doing`."""
    blocks: list[Block] = []
    if not isinstance(error, UsageError):
        blocks.append(Fields((("job", error.job),)))
    if error.findings:
        blocks.append(Findings(error.findings))
    if any(one.trouble or one.how != "same" for one in error.gpus):
        blocks += gpus.table(error.gpus)
    if error.processes:
        blocks.append(_processes(error.processes))
    if len(error.attempts) > 1:
        blocks.append(attempts(error.attempts))
    rows = [("next", error.hint)] if error.hint else []
    if error.log is not None:
        rows.append(("log", str(error.log)))
    if error.receipt is not None:
        rows.append(("receipt", str(error.receipt)))
    rows.append(("error", f"{error.name}, exit {error.exit_code}"))
    blocks.append(Fields(tuple(rows)))
    if error.excerpt:
        blocks.append(Verbatim("from the log" if error.log else "details", error.excerpt))
    return Page(_title(doing, error), Tone.BAD, tuple(blocks))


def payload(error: GpuckptError) -> dict[str, object]:
    """Return the JSON form of an error."""
    return {
        "name": error.name,
        "message": error.message,
        "hint": error.hint,
        "job": error.job,
        "findings": error.findings,
        "processes": error.processes,
        "gpus": gpus.payload(error.gpus),
        "attempts": error.attempts,
        "lost": error.lost,
        "log": error.log,
        "kept": error.receipt,
        "excerpt": error.excerpt,
    }


def usage(error: TyperException, command: str) -> UsageError:
    """Return the parser's complaint about a command (empty: about none) as our own error."""
    message = error.format_message().strip()
    negative = re.search(r"No such option: (-\d+)", message)
    if negative and command == "dump":
        hint = "`gpuckpt jobs` lists the GPU jobs of this node with their pids."
        return UsageError(f"PID: {negative[1]} is not a process id: they start at 1", hint=hint)
    message = re.sub(r"^Invalid value for '?([^':]+)'?: ", r"\1: ", message).rstrip(".")
    line = " ".join(word for word in ("gpuckpt", command, "--help") if word)
    return UsageError(message, hint=f"`{line}` shows what is possible.")


def unforeseen(error: BaseException, state_dir: Path) -> Bug:
    """Return an error nobody foresaw as a bug, with its traceback kept in a file."""
    text = "".join(traceback.format_exception(error))
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Bug(
        f"gpuckpt itself failed: {what}",
        log=keep(text, state_dir, "gpuckpt-bug"),
        excerpt=text.rstrip().splitlines()[-_TAIL:],
    )


def _processes(processes: tuple[Condition, ...]) -> Table:
    """Show how each process of the job is now."""
    return Table(
        "the job's processes now",
        ("pid", "is there", "stopped", "traced by", "CUDA", "CUDA before", "command"),
        tuple(
            (
                str(one.pid),
                "yes" if one.exists else "no",
                "yes" if one.stopped else "no",
                str(one.tracer or "nobody"),
                _cuda(one),
                str(one.cuda_before or "none"),
                one.command,
            )
            for one in processes
        ),
        right=frozenset({0}),
    )


def attempts(tried: tuple[Attempt, ...]) -> Table:
    """Show what was tried to have a job run again, a line each."""
    rows = ((one.image or "start", one.created, one.outcome, one.message) for one in tried)
    return Table("tried", ("IMAGE", "MADE", "OUTCOME", "REASON"), tuple(rows))


def _cuda(one: Condition) -> str:
    if one.cuda_before is None:
        return "none"
    return str(one.cuda) if one.cuda is not None else "unknown"


def _title(doing: str, error: GpuckptError) -> str:
    who = f"gpuckpt {doing}" if doing else "gpuckpt"
    return f"{who}: {error.message}"


def keep(text: str, state_dir: Path, name: str) -> Path | None:
    """Keep a text in a private file of the state directory, or where files can be made."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for folder in (state_dir, Path(tempfile.gettempdir())):
        path = folder / f"{name}-{moment}-{os.getpid()}.txt"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return None
