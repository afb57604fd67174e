"""Which modules a Python process has imported, as far as its memory tells from outside.

A module that is only Python code leaves nothing mapped. But for as long as it is there, its code
names its file in a string of the interpreter. Text alone would prove nothing: freed memory keeps
it. A living string says how long it is, in front of its text, and how often it is used: so in
CPython 3.3 to 3.14, tried with 3.8 to 3.13.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.pagemap import PAGE
from gpuckpt.tools.procfs import lines, read
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# of one process; what is above it is mostly tensors, and the small areas are read first
MOST: Final = 1 << 30
PACKAGES: Final = b"-packages/"
_MODULE: Final = re.compile(rb"/[ -~]*\.py")
# the upper bytes of pagemap entries of pages that are there, or swapped out
_THERE: Final = re.compile(rb"[\x40-\xff]+")
_ENTRY: Final = 8
_ENTRIES: Final = 1 << 16
_PIECE: Final = 4 << 20
_LONGEST: Final = 512
# where length and count of uses stand before the text: until CPython 3.11, and since
_HEADS: Final = ((32, 48), (24, 40))
_MOST_USES: Final = 1 << 33  # of what never dies 2^32 - 1; a pointer of a freed block is above


class Imported(Value, frozen=True):
    """The files of modules, the `bytes` that were read, and whether that was all there is."""

    paths: frozenset[str] = frozenset()
    bytes: int = 0
    whole: bool = True


def imported(root: Path, pid: int, places: Iterable[str] = (), most: int = MOST) -> Imported:
    """Look for modules of installed packages, and for those below other `places`."""
    needles = [PACKAGES, *(os.fsencode(place.rstrip("/") + "/") for place in places)]
    found: set[bytes] = set()
    done, whole = 0, True
    try:
        for piece in _pieces(root, pid):
            if done + len(piece) > most:
                whole = False
                break
            done += len(piece)
            for needle in needles:
                found.update(_living(piece, needle))
    except OSError:  # gone, or nobody may look
        whole = False
    return Imported(frozenset(one.decode("ascii") for one in found), done, whole)


def _living(piece: bytes, needle: bytes) -> Iterator[bytes]:
    """Yield what living strings in a piece of memory name a module and hold the needle."""
    at = piece.find(needle)
    while at >= 0:
        end = piece.find(b"\0", at, at + _LONGEST)
        if end < 0:
            end = at + len(needle)
        elif (text := _string(piece, at + 1, end)) and _MODULE.fullmatch(text):
            yield text
        at = piece.find(needle, end)


def _string(piece: bytes, at: int, end: int) -> bytes:
    """Return the living string that goes to `end` and begins with a slash before `at`."""
    lowest = max(0, end - _LONGEST)
    start = piece.rfind(b"/", lowest, at)
    while start >= 0:
        for length, uses in _HEADS:
            if start >= uses and _number(piece, start - length) == end - start:
                alive = 0 < _number(piece, start - uses) < _MOST_USES
                return piece[start:end] if alive else b""
        start = piece.rfind(b"/", lowest, start)
    return b""


def _number(piece: bytes, at: int) -> int:
    return int.from_bytes(piece[at : at + 8], "little")


def _pieces(root: Path, pid: int) -> Iterator[bytes]:
    """Read memory of its own that a process may write to, the smallest areas first.

    What was never written is left alone: to read it would give the process pages of zeros.
    """
    folder = f"{root}/{pid}"
    areas = sorted(_areas(read(f"{folder}/maps") or b""))
    pagemap = os.open(f"{folder}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for size, start in areas:
                with suppress(OSError):  # it was unmapped meanwhile
                    yield from _area(pagemap, memory, start, start + size)
        finally:
            os.close(memory)
    finally:
        os.close(pagemap)


def _areas(maps: bytes) -> Iterator[tuple[int, int]]:
    for line in lines(maps):
        fields = line.split(None, 5)
        name = fields[5] if len(fields) > 5 else b""  # noqa: PLR2004 - the sixth field
        if fields[1] == b"rw-p" and fields[4] == b"0" and (not name or name.startswith(b"[heap")):
            start, _, end = fields[0].partition(b"-")
            yield int(end, 16) - int(start, 16), int(start, 16)


def _area(pagemap: int, memory: int, start: int, end: int) -> Iterator[bytes]:
    """Read an area page run by page run, with what a string may have before a cut."""
    while start < end:
        entries = min((end - start) // PAGE, _ENTRIES)
        told = os.pread(pagemap, entries * _ENTRY, start // PAGE * _ENTRY)
        if not told:
            return
        for run in _THERE.finditer(told[_ENTRY - 1 :: _ENTRY]):
            at, stop = (start + edge * PAGE for edge in run.span())
            while at < stop:
                piece = os.pread(memory, min(_PIECE, stop - at), at)
                yield piece
                if at + len(piece) >= stop or len(piece) <= PAGE:
                    break
                at += len(piece) - PAGE  # a string may lie across
        start += len(told) // _ENTRY * PAGE
