"""Reading a CRIU log for the reason of a failure.

Only a run that failed is read: a successful one logs "Error" lines too (4.2.1 without
CAP_SYS_RESOURCE complains about RLIMIT_NOFILE every time). What counts is the first line that
tells a cause; what CRIU says of its consequences counts only if there is no such line. Rules
(gpuckpt.tools.criuwords) go by text, never by line number, and a failure that no rule knows is
shown as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.criunames import Names
from gpuckpt.tools.criuwords.areas import AREAS
from gpuckpt.tools.criuwords.files import FILES
from gpuckpt.tools.criuwords.host import HOST, WEAK
from gpuckpt.tools.criuwords.places import PLACES, TAKEN
from gpuckpt.tools.criuwords.restore import IMAGES, RIGHTS
from gpuckpt.tools.criuwords.sockets import SOCKETS
from gpuckpt.tools.criuwords.tasks import TASKS
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SHOWN_LINES: Final = 5
# enough for the start and the end of any log; the middle of a flooded one helps nobody
READ_BYTES: Final = 4 << 20
CAUSES: Final = (*SOCKETS, *FILES, *TASKS, *HOST, *TAKEN, *PLACES, *IMAGES, *RIGHTS)
# of successful runs too, probes of the kernel, and what CRIU says when all is over
_HARMLESS: Final = re.compile(
    r"RLIMIT_NOFILE|kdat cache|irmap: Can't (open|stat)|inotify max_user|not fatal|"
    r"reported by netlink|Unable to create a veth pair|net: Unexpected error|"
    r"exited, status=|(with|failed with) -1$"
)
_CLOSING: Final = re.compile(r"(Dumping|Restoring) FAILED")
_TELLING: Final = re.compile(
    r"Error \(|Unable to interrupt task|Effective capability \d+ missing|unrecognized option"
)
_PREFIX: Final = re.compile(
    r"^(?:\([\d.]+\))?\s*(?:pie:\s*)?(?:(?P<pid>\d+):\s+)?(?:(?:Error|Warn) +\([^)]*\):\s*)?"
)
_OF_PROCESS: Final = re.compile(r"\(pid: (?P<pid>\d+)\)|\) (?P<pid2>\d+) fdinfo (?P<fd>\d+): ")
_OPENING: Final = re.compile(r"Unable to open fd=(?P<fd>-?\d+) id=(?P<xid>0x[0-9a-f]+)")


class Report(Value, frozen=True):
    """What a log says: a sentence and advice if a rule knew the failure, and the lines.

    `complaint` is the first thing CRIU complained of, for a failure that no rule knows.
    """

    sentence: str
    hint: str
    lines: tuple[str, ...]
    complaint: str = ""


class Line(Value, frozen=True):
    """One line that tells something, and what CRIU was about when it said it."""

    raw: str
    text: str
    pid: int | None
    fd: int | None
    id: int | None = None


def read(log: Path, names: Names | None = None) -> Report:
    """Look into the log of a failed run; a missing log gives an empty report."""
    every = [line for line in _text(log).splitlines() if line.strip()]
    lines = list(_telling(every))
    for rules in (CAUSES, WEAK, AREAS):
        for line in lines:
            for rule in rules:
                if found := re.search(rule.pattern, line.text):
                    said = words(line, found.groupdict(), names or Names())
                    hint = rule.hint.format(**said)
                    return Report(rule.sentence.format(**said), hint, _shown(lines, line))
    return Report("", "", _unknown(every, lines), lines[0].text if lines else "")


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the end of a log, for a run that ended without a word."""
    return tuple(line for line in _text(log).splitlines() if line.strip())[-SHOWN_LINES:]


def _text(log: Path) -> str:
    """Read a log; of a large one the start, where the cause is, and the end."""
    try:
        with log.open("rb") as file:
            raw = file.read(READ_BYTES)
            if log.stat().st_size > 2 * READ_BYTES:
                file.seek(-READ_BYTES, 2)
            raw += file.read(READ_BYTES)
    except OSError:
        return ""
    return raw.decode("utf-8", "replace")


def _telling(every: Iterable[str]) -> Iterator[Line]:
    """Pick what may tell a cause, each with the process and descriptor CRIU was working on."""
    pid: int | None = None
    fd: int | None = None
    found: list[Line] = []
    for raw in every:
        if _CLOSING.search(raw):
            break
        if not _TELLING.search(raw):
            if about := _OF_PROCESS.search(raw):
                pid, fd = _number(about["pid"] or about["pid2"]), _number(about["fd"])
            continue
        if not _HARMLESS.search(raw):
            found.append(_line(raw, pid, fd))
    for at, line in enumerate(found):
        yield _opened(line, found[at + 1 : at + 4])


def _line(raw: str, pid: int | None, fd: int | None) -> Line:
    prefix = _PREFIX.match(raw)
    own = _number(prefix["pid"]) if prefix else None
    text = raw[prefix.end() :] if prefix else raw
    return Line(raw, text, own or pid, None if own else fd)


def _opened(line: Line, after: Iterable[Line]) -> Line:
    """At a restore CRIU says which descriptor it meant after it has said what was wrong."""
    for one in after:
        if one.pid == line.pid and (found := _OPENING.search(one.text)):
            return Line(line.raw, line.text, line.pid, int(found["fd"]), int(found["xid"], 16))
    return line


def words(line: Line, groups: dict[str, str | None], names: Names) -> dict[str, str]:
    """Turn the numbers of a line into words for its sentence."""
    said: dict[str, str] = {}
    for name, value in groups.items():
        if value is not None:
            said.setdefault(name.rstrip("123"), value)
    pid = _number(said.get("pid")) or line.pid
    fd = _number(said.get("fd")) if "fd" in said else line.fd
    id_ = _number(said.get("id")) or int(said.get("xid", "0"), 16) or line.id
    blank = {"path": "?", "why": "no reason given", "family": "?", "pid": "?", "path2": "?"}
    words = blank | said
    if "path" in said and not said["path"].startswith(("/", "(")):
        words["path"] = f"/{said['path'].removeprefix('./')}"
    opened = names.descriptor(pid, fd)
    if id_ is not None and id_ in names.files:
        opened = f"descriptor {fd} ({names.file(id_)})" if fd is not None else names.file(id_)
    return words | {
        "text": line.text,
        "who": names.process(pid),
        "object": opened,
        "file": names.file(id_) if id_ else "a socket",
        "mapping": names.mapping(pid, int(said.get("map", "0"), 16)),
        "socket": names.socket(int(said.get("ino", "0"), 16)),
        "locks": _listed(names.locks),
        "peers": _listed(names.peers),
        "rings": _listed((names.having(pid, "io_uring"),)),
        "devices": _listed((names.having(pid, "/dev/"),)),
    }


def groups(pattern: str) -> set[str]:
    """Return the words that a pattern gives: of pid, pid2 and pid3 whichever matched is pid."""
    return {name.rstrip("123") for name in re.compile(pattern).groupindex}


def _listed(things: Iterable[str]) -> str:
    known = [thing for thing in things if thing]
    return f": {', '.join(known[:4])}" if known else ""


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def _shown(lines: list[Line], told: Line) -> tuple[str, ...]:
    """The line a sentence was made of, and those around it."""
    at = lines.index(told)
    return tuple(line.raw for line in lines[max(0, at - 1) : at + SHOWN_LINES - 1])


def _unknown(every: list[str], lines: list[Line]) -> tuple[str, ...]:
    """What nobody understands: CRIU's own complaints, and how the log ends."""
    first = [line.raw for line in lines[:SHOWN_LINES]]
    return (*first, *(line for line in every[-SHOWN_LINES:] if line not in first))
