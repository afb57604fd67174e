"""What a rule is: a small pure function from facts to findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.facts import DumpFacts
from gpuckpt.model import Finding, TcpPolicy
from gpuckpt.value import Value

if TYPE_CHECKING:
    from gpuckpt.tools.outside import Holder

GIB: Final = 1 << 30


class DumpChoices(Value, frozen=True):
    """What the user chose that a judgement depends on.

    `ghost_limit` is the largest deleted file, in bytes, that may go into the image;
    `leave_running` that the job goes on after the dump; `ignore` names findings that shall not
    stop it; `rehearsal` that this is all it is for; `quiesce` that processes which cooperate are
    brought to rest first, `quiesced` that they are by now.
    """

    tcp: TcpPolicy = TcpPolicy.NONE
    ghost_limit: int = GIB
    leave_running: bool = False
    ignore: frozenset[str] = frozenset()
    rehearsal: bool = False
    quiesce: bool = False
    quiesced: bool = False


Rule = Callable[[DumpFacts, DumpChoices], Iterator[Finding]]


def descriptor(fd: int | None, path: str) -> str:
    """Name what a process holds: `fd 3 PATH`, or `mapping PATH`."""
    return f"mapping {path}" if fd is None else f"fd {fd} {path}"


def whose(holder: Holder | None) -> str:
    """Name a process outside the tree."""
    if holder is None:
        return "a process that cannot be seen from here"
    return f"process {holder.pid} ({holder.comm})"


def whole(text: str) -> int | None:
    """Read a whole number that a job may have written: None for anything else or a huge one."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def size(number: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:  # noqa: PLR2004 - the step between binary units
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
