"""What a command has to say, before anyone decides how it looks.

A page is built once and shown as plain lines or on a terminal; the payload beside it becomes
the JSON `result`. Nothing here prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuckpt.errors import GpuckptError
    from gpuckpt.model import Finding
    from gpuckpt.timing import Receipt


class Tone(StrEnum):
    """Whether a page brings good news."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, one a line, below a heading if there is one."""

    rows: tuple[tuple[str, str], ...]
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. `right` lists the columns that hold numbers, `marks` colours.

    `marks` maps a cell's exact text to the tone it is shown in on a terminal.
    """

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    marks: tuple[tuple[str, Tone], ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What stops or endangers an operation."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: how it stands, in a word and in a sentence, and what to do."""

    tone: Tone
    word: str
    id: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Checks:
    """A list of things looked at."""

    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The phases of a receipt as bars over time."""

    heading: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines of another program, shown as they are."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or two."""

    text: str
    tone: Tone = Tone.NEUTRAL


@dataclass(frozen=True, slots=True)
class Next:
    """Command lines to type next, never broken over lines."""

    commands: tuple[str, ...]


Block = Fields | Table | Findings | Checks | Timeline | Verbatim | Paragraph | Next


@dataclass(frozen=True, slots=True)
class Page:
    """A title and what stands below it."""

    title: str
    tone: Tone
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to: `payload` for programs, `page` for people, `quiet` for -q.

    `status` is the exit status of one that worked, 0 but for a job waited for. `error` is for a
    command that has a result *and* fails by it, such as doctor.
    """

    payload: object
    page: Page
    quiet: str = ""
    status: int = 0
    error: GpuckptError | None = None

    @property
    def exit_code(self) -> int:
        """What the program ends with."""
        return self.status if self.error is None else self.error.exit_code
