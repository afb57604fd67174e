"""Reading a CRIU log for the reason of a failure.

Only a run that failed is read: a successful one logs "Error" lines too (4.2.1 without
CAP_SYS_RESOURCE complains about RLIMIT_NOFILE every time). Rules go by text, never by line
number, and a line that no rule knows is shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SHOWN_LINES = 5
# enough for the end of any log; the middle of a flooded one helps nobody
READ_BYTES = 4 << 20
_HARMLESS = re.compile(
    r"RLIMIT_NOFILE|kdat cache|irmap|inotify max_user|Dumping FAILED|Restoring FAILED"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a log says: a sentence and advice if a rule knew the failure, and the lines."""

    sentence: str
    hint: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    sentence: str
    hint: str


_RULES = (
    _Rule(
        r"Can't fork for (?P<id>\d+): File exists",
        "pid {id}, which the job had, is taken on this host",
        "End whatever uses it (it may be a zombie that its parent has not waited for) and retry.",
    ),
    _Rule(
        r"Unable to create a thread: -17",
        "a thread id that the job had is taken on this host",
        "Retry in a moment; `gpuckpt show` lists the ids the job needs.",
    ),
    _Rule(
        r"Can't open file (?P<path>.+?) on restore: No such file",
        "/{path} is missing on this host",
        "Put the file back as it was and retry.",
    ),
    _Rule(
        r"File (?P<path>.+?) has bad (?P<what>size|mode|build-ID)(?P<rest>.*)",
        "/{path} has another {what} than when the job was dumped{rest}",
        "Put the file back as it was and retry.",
    ),
    _Rule(
        r"Can't dump file (?P<fd>\d+) of that type \[\w+\] \((?P<what>[^)]*)\)",
        "descriptor {fd} of the job is a device or object ({what}) that CRIU cannot dump",
        "Close it in the job and retry.",
    ),
    _Rule(
        r"Connected TCP socket, consider using",
        "the job has a connected TCP socket",
        "Say what is to become of it: --tcp established or --tcp close.",
    ),
    _Rule(
        r"In-flight connection",
        "a client waits to be accepted on a TCP port of the job",
        "Retry when the job has accepted it, or let it go with --tcp close.",
    ),
    _Rule(
        r"pidfd pid (?P<pid>\d+) is not a part of process tree",
        "the job holds a pidfd of process {pid}, which is outside its tree",
        "Let the job close it, or dump the tree that holds both.",
    ),
    _Rule(
        r"Some file locks are hold",
        "the job holds file locks",
        "Retry with --file-locks.",
    ),
    _Rule(
        r"External socket is used|Can't dump half of stream unix connection",
        "the job is connected to a process outside its tree through a unix socket",
        "Dump the tree that holds both ends, or end the connection.",
    ),
    _Rule(
        r"Can't dump ghost file (?P<path>.+?) of (?P<size>\d+) size",
        "the deleted file {path}, still open, is larger ({size} bytes) than the limit",
        "Raise --ghost-limit.",
    ),
    _Rule(
        r"Can't link remap to (?P<path>.+?): File exists",
        "a link_remap file of another dump, beside {path}, has the name that CRIU needs",
        "Restore the job it belongs to first, or remove it if that image is given up.",
    ),
    _Rule(
        r"Can't bind inet socket.*Address already in use",
        "a port of the job is in use on this host",
        "End whatever listens there, or wait a minute for closed connections (TIME_WAIT).",
    ),
    _Rule(
        r"is not a session leader|dangling tty|without correspond(ing)? master",
        "the job's terminal or session belongs to a process outside its tree",
        "Start such jobs with setsid and their output in files.",
    ),
    _Rule(
        r"Failed to set (group|sid) \d+ on \d+",
        "the job's terminal could not be given to it",
        "Run the restore in a terminal, with that terminal as its standard input.",
    ),
    _Rule(
        r"Don't have tty to inherit session",
        "the job needs a terminal and there is none here",
        "Run the restore from a terminal.",
    ),
    _Rule(
        r"Unknown shit|io_uring",
        "the job has an io_uring ring, which CRIU cannot dump",
        "Start it with UV_USE_IO_URING=0, or with kernel.io_uring_disabled=2.",
    ),
    _Rule(
        r"Unable to detach from \d+: No such process|Unseizable|zombie found while seizing",
        "a task of the job could not be seized: traced by another program, or just ended",
        "End the debugger or tracer and retry.",
    ),
    _Rule(
        r"Reached EOF unexpectedly|Unexpected EOF on",
        "CRIU got less of an image than it needs",
        "Check the image with `gpuckpt verify`.",
    ),
    _Rule(
        r"No space left on device",
        "a filesystem is full",
        "Free some space and retry.",
    ),
    _Rule(
        r"Cannot allocate memory|mapping with 0xfffffffffffffff4",
        "this host ran out of memory",
        "Free memory, or raise the limit of the memory cgroup, and retry.",
    ),
)


def read(log: Path) -> Report:
    """Look into the log of a failed run; a missing log gives an empty report."""
    lines = _errors(log)
    for line in lines:
        for rule in _RULES:
            if found := re.search(rule.pattern, line):
                return Report(rule.sentence.format(**found.groupdict()), rule.hint, _shown(lines))
    return Report("", "", _shown(lines))


def _errors(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    every = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in every if "Error (" in line and not _HARMLESS.search(line)]
    return errors or every[-SHOWN_LINES:]


def _shown(lines: list[str]) -> tuple[str, ...]:
    return tuple(lines[:SHOWN_LINES])
