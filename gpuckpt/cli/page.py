"""What a command has to say, before anyone decides how it looks.

A page is built once and shown as plain lines or on a terminal; the payload beside it becomes
the JSON `result`. Nothing here prints.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from gpuckpt.value import Value

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


class Fields(Value, frozen=True):
    """Names and values, one a line, below a heading if there is one."""

    rows: tuple[tuple[str, str], ...]
    heading: str = ""


class Table(Value, frozen=True):
    """Rows under headings. `right` lists the columns that hold numbers, `marks` colours.

    `marks` maps a cell's exact text to the tone it is shown in on a terminal.
    """

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    marks: tuple[tuple[str, Tone], ...] = ()


class Findings(Value, frozen=True):
    """What stops or endangers an operation."""

    findings: tuple[Finding, ...]


class Check(Value, frozen=True):
    """One thing looked at: how it stands, in a word and in a sentence, and what to do."""

    tone: Tone
    word: str
    id: str
    text: str
    remedy: str


class Checks(Value, frozen=True):
    """A list of things looked at."""

    checks: tuple[Check, ...]


class Timeline(Value, frozen=True):
    """The phases of a receipt as bars over time."""

    heading: str
    receipt: Receipt


class Verbatim(Value, frozen=True):
    """Lines of another program, shown as they are."""

    heading: str
    lines: tuple[str, ...]


class Paragraph(Value, frozen=True):
    """A sentence or two."""

    text: str
    tone: Tone = Tone.NEUTRAL


class Next(Value, frozen=True):
    """Command lines to type next, never broken over lines."""

    commands: tuple[str, ...]


Block = Fields | Table | Findings | Checks | Timeline | Verbatim | Paragraph | Next


class Page(Value, frozen=True):
    """A title and what stands below it."""

    title: str
    tone: Tone
    blocks: tuple[Block, ...] = ()


class Outcome(Value, frozen=True):
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
