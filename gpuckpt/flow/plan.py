"""The judge: what of the facts stops a dump, and what endangers it. Pure, and all at once.

One rule is one small function in a list of gpuckpt/flow/rules; a new rule is a new function there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.errors import (
    Blocked,
    DriverUnfit,
    GpuckptError,
    HostUnfit,
    NoSpace,
    NotPrivileged,
    NotWritable,
)
from gpuckpt.flow.rules import files, gpu, peers, process, room

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.facts import DumpFacts
    from gpuckpt.flow.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

RULES: Final[tuple[Rule, ...]] = (
    *process.RULES,
    *gpu.RULES,
    *files.RULES,
    *peers.RULES,
    *room.RULES,
)


def judge_dump(facts: DumpFacts, choices: DumpChoices) -> tuple[Finding, ...]:
    """Return every finding, blockers first, otherwise in the order of the rules."""
    found = [finding for rule in RULES for finding in rule(facts, choices)]
    return tuple(sorted(found, key=lambda one: not one.blocks))


# blockers that lie with the host rather than with the job, and what they amount to
_HOST: Final[dict[str, type[HostUnfit]]] = {
    "not-privileged": NotPrivileged,
    "driver-too-old": DriverUnfit,
    "mig": DriverUnfit,
    "memory-host": NoSpace,
    "space": NoSpace,
    "not-writable": NotWritable,
}


def refusal(findings: Iterable[Finding]) -> GpuckptError | None:
    """Return the error that the blockers among the findings amount to, None without any.

    An error of the host if the host is all that is wrong, otherwise Blocked.
    """
    listed = tuple(findings)
    blockers = [one for one in listed if one.blocks]
    if not blockers:
        return None
    kinds = {_HOST.get(one.id, Blocked) for one in blockers}
    if Blocked in kinds:
        kind: type[GpuckptError] = Blocked
    else:
        kind = kinds.pop() if len(kinds) == 1 else HostUnfit
    count = f"{len(blockers)} findings stop" if len(blockers) > 1 else "one finding stops"
    return kind(f"{count} the dump; nothing was touched", findings=listed)
