"""What a rule about a target is: a small pure function from image and facts to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpuckpt.flow.returning.target.facts import TargetFacts
from gpuckpt.image.manifest import Manifest
from gpuckpt.model import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuckpt.model import Process

Rule = Callable[[Manifest, TargetFacts], Iterator[Finding]]

_LONGEST = 100
_MOST = 4


def name(process: Process) -> str:
    """Name a process for people: its pid and its command, cut where it gets too long."""
    line = process.command
    short = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
    return f"process {process.pid} ({short})"


def some(words: Sequence[object]) -> str:
    """List a few, count the rest."""
    shown = ", ".join(map(str, words[:_MOST]))
    return shown if len(words) <= _MOST else f"{shown} and {len(words) - _MOST} more"
