"""What CRIU says of its own run: stats-dump and stats-restore, which it leaves in its work folder.

Field numbers are those of CRIU 4.2.1. CRIU takes these times with gettimeofday: they may jump with
the wall clock, and are never to be added to ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.errors import ImageDamaged
from gpuckpt.timing import Foreign, seconds
from gpuckpt.tools.wire import records

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.tools.wire import Message

DUMP: Final = "stats-dump"
RESTORE: Final = "stats-restore"

_STATS: Final = 0x57093306
_CLOCK: Final = "gettimeofday"
_TIMES: Final = {
    DUMP: {1: "freezing", 2: "frozen", 3: "memdump", 4: "memwrite"},
    RESTORE: {3: "forking", 4: "restore"},
}
_COUNTS: Final = {
    DUMP: {5: "pages_scanned", 7: "pages_written"},
    RESTORE: {5: "pages_restored"},
}
_PART: Final = {DUMP: 1, RESTORE: 2}
_LARGEST: Final = 1 << 20


def read(folder: Path, name: str) -> tuple[Foreign, ...]:
    """Return what CRIU has left of `name` in its work folder; nothing if it has left nothing.

    These are figures for people: a file that cannot be read is no reason to fail.
    """
    try:
        with (folder / name).open("rb") as file:
            found = next(records(file.read(_LARGEST), _STATS, name, service=True), None)
        part = found.message(_PART[name]) if found is not None else None
        return (_told(part, name),) if part is not None else ()
    except (OSError, ImageDamaged):
        return ()


def _told(part: Message, name: str) -> Foreign:
    times = {label: seconds(part.number(field)) for field, label in _TIMES[name].items()}
    counts = {label: part.number(field) for field, label in _COUNTS[name].items()}
    return Foreign("criu", _CLOCK, times, counts)
