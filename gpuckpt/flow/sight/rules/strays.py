"""Rules about what belongs to a tree without being in it, and would be missing or in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_IN_MEMORY: Final = "/memfd:"


def program_in_memory(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 dumps it without a complaint, and cannot restore it: its program has no file."""
    for process in facts.tree.processes:
        if process.exe.startswith(_IN_MEMORY):
            yield blocker(
                "program-in-memory",
                process.exe,
                "The program of this process is no file but memory (memfd): a dump would succeed "
                "and could never be restored.",
                "Start it from a file.",
                process.pid,
            )


def session_outside(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The kernel gives no number anew while a session or group has it."""
    for stray in facts.look.strays:
        number = stray.sid if stray.sid in facts.tree.pids else stray.pgid
        yield warning(
            "session-outside",
            f"session {number}" if number == stray.sid else f"process group {number}",
            f"Process {stray.pid} ({stray.comm}) was started by this job and left its tree: it is "
            f"not in the image, goes on without the job, and keeps the number {number} taken.",
            f"End it before the restore (kill {stray.pid}), or let it start with setsid.",
            number,
        )


RULES: Final[tuple[Rule, ...]] = (program_in_memory, session_outside)
