"""Rules about processes that can be brought to rest at a step, and what that changes.

Before it, what such a process may let go of does not stop a dump yet; the look at the job at rest
decides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuckpt.model import Severity, blocker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding
    from gpuckpt.tools.look import Task

# PyTorch has them as long as it has an NCCL group; the library stays mapped without one
_GROUP_THREADS: Final = ("pt_nccl_watchdg", "pt_nccl_heartbt")
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
_OF_GROUPS: Final = frozenset({"nccl", "heartbeat"})


def no_cooperation(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """Nobody can be asked who does not listen."""
    if choices.quiesce and not facts.cooperating:
        root = facts.tree.root
        yield blocker(
            "no-cooperation",
            root.command,
            "No process of the job can be brought to rest at a step: none has a cooperate.Point.",
            "Let the job use gpuckpt/cooperate.py (see its first lines), or dump it without "
            "--quiesce.",
            root.pid,
        )


def group_alone(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """One rank that keeps its group keeps the others from letting go of theirs."""
    if not (choices.quiesce and facts.cooperating):
        return
    for task in facts.look.tasks:
        if _has_group(task) and not task.cooperates:
            yield blocker(
                "rank-uncooperative",
                task.process.command,
                "It has a living NCCL group and cannot be brought to rest, as other ranks can.",
                "Let every rank make its cooperate.Point.",
                task.process.pid,
            )


def adjusted(one: Finding, facts: DumpFacts, choices: DumpChoices) -> Finding | None:
    """Return what a finding is worth for a job that cooperates; None: nothing any more."""
    if one.pid not in facts.cooperating:
        return one
    if choices.quiesced:
        living = any(_has_group(task) for task in facts.look.tasks)
        return one if living or one.id not in _OF_GROUPS else None
    if choices.quiesce:
        if one.id not in _PASSING:
            return one
        reason = f"{one.reason} The job is asked to let go of it, and looked at again."
        return replace(one, severity=Severity.WARNING, reason=reason)
    if one.id == "nccl":
        return replace(one, remedy=f"Dump it with --quiesce, its ranks cooperate. {one.remedy}")
    return one


def _has_group(task: Task) -> bool:
    return not task.thread_names.isdisjoint(_GROUP_THREADS)


RULES: Final[tuple[Rule, ...]] = (no_cooperation, group_alone)
