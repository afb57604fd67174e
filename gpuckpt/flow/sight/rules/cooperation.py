"""Rules about processes that can be brought to rest at a step, and what that changes.

Before it, what such a process may let go of does not stop a dump yet; the look at the job at rest
decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.flow.sight.rules.ranks import communicators
from gpuckpt.model import Severity, blocker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_PASSING: Final = frozenset(
    {
        "cuda-ipc",
        "descriptor-unsupported",
        "descriptors-in-flight",
        "device-node",
        "gpu-memory-exported",
        "io-uring",
        "managed-memory",
        "mapping-unsupported",
        "memory-file",
        "nccl",
        "netlink-unread",
        "pipe-outside",
        "pipe-packets",
        "socket-shared",
        "socket-unsupported",
        "tcp-connected",
        "tcp-waiting",
        "unix-peer-outside",
        "unix-server",
        "unix-waiting",
    }
)
# warnings for want of signs: at rest the want is what was asked for
_OF_GROUPS: Final = frozenset({"nccl", "heartbeat"})


def no_cooperation(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """Nobody can be asked who does not listen."""
    if choices.quiesce and not facts.cooperating:
        root = facts.tree.root
        yield blocker(
            "no-cooperation",
            root.command,
            "No process of the job can be brought to rest at a step: none uses cooperate.py.",
            "Dump it without --quiesce, or have the job call gpuckpt's cooperate.py: its first "
            "lines say how.",
            root.pid,
        )


def group_alone(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """One rank that keeps its group keeps the others from letting go of theirs."""
    if not (choices.quiesce and facts.cooperating):
        return
    signs = communicators(facts)
    for task in facts.look.tasks:
        if (sign := signs.get(task.process.pid)) and not task.cooperates:
            yield blocker(
                "rank-uncooperative",
                task.process.command,
                f"It talks by NCCL ({sign}) and cannot be brought to rest, as other ranks can.",
                "Let every rank make its cooperate.Point.",
                task.process.pid,
            )


def adjusted(one: Finding, facts: DumpFacts, choices: DumpChoices) -> Finding | None:
    """Return what a finding is worth for a job that cooperates; None: nothing any more."""
    if one.pid not in facts.cooperating:
        return one
    if choices.quiesced:
        return None if one.id in _OF_GROUPS and not one.blocks else one
    if choices.quiesce:
        if one.id not in _PASSING:
            return one
        reason = f"{one.reason} The job is asked to let go of it, and looked at again."
        return replace(one, severity=Severity.WARNING, reason=reason)
    if one.id == "nccl":
        return replace(one, remedy=f"Dump it with --quiesce, its ranks cooperate. {one.remedy}")
    return one


RULES: Final[tuple[Rule, ...]] = (no_cooperation, group_alone)
