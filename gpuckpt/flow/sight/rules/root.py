"""Rules about the pid that was asked for: a part of a job, or something above all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.flow.work.kin import starts_jobs
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_MOST: Final = 8


def root_too_high(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A shell or a session manager holds all that was started from it, whatever that is."""
    root = facts.tree.root
    if not starts_jobs(root):
        return
    below = facts.better_roots
    names = ", ".join(map(str, below[:_MOST])) + (", ..." if len(below) > _MOST else "")
    remedy = "There is no job below it: look for its pid with `gpuckpt jobs` or ps."
    if len(below) == 1:
        remedy = f"Dump the job below it: process {names}."
    elif below:
        remedy = f"Dump one of the jobs below it: process {names}."
    yield blocker(
        "root-too-high",
        root.comm,
        "This process starts jobs, or takes what somebody types, and is no part of a job.",
        remedy,
        root.pid,
    )


def root_too_low(facts: DumpFacts, choices: DumpChoices) -> Iterator[Finding]:
    """One rank alone is worth nothing: its peers wait for it, and an image of it for them.

    A rehearsal only holds it for a moment.
    """
    job, root = facts.kin.job, facts.tree.root
    if job is None:
        return
    remedy = f"Dump the whole job: process {job.pid}."
    if facts.kin.on_gpu:
        count = len(facts.kin.on_gpu)
        reason = f"Process {facts.kin.on_gpu[0]} of the same job holds a GPU too and would be left."
        if count > 1:
            reason = f"{count} other processes of the same job hold GPUs too and would be left."
        finding = warning if choices.rehearsal else blocker
        yield finding("root-too-low", f"{job.pid} ({job.comm})", reason, remedy, root.pid)
    else:
        yield warning(
            "root-too-low",
            f"{job.pid} ({job.comm})",
            "It is a part of the job that this process runs, which would see it die.",
            remedy,
            root.pid,
        )


RULES: Final[tuple[Rule, ...]] = (root_too_high, root_too_low)
