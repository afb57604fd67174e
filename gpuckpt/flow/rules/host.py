"""Rules about the host, as far as it decides whether this job can be dumped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import blocker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.facts import DumpFacts
    from gpuckpt.flow.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

_NO_ATTACH: Final = 3  # Documentation/admin-guide/LSM/Yama.rst


def ptrace_forbidden(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """With Yama at its strictest nobody can attach to anything until the next boot."""
    if facts.host.ptrace_scope >= _NO_ATTACH:
        yield blocker(
            "ptrace-forbidden",
            f"kernel.yama.ptrace_scope = {facts.host.ptrace_scope}",
            "The kernel lets nobody attach to a process, not even root.",
            "Boot with kernel.yama.ptrace_scope at 2 or less; it cannot be lowered while up.",
        )


def own_seccomp(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """The kernel lets only a process without seccomp suspend the seccomp of another."""
    if not facts.look.own_seccomp:
        return
    for task in facts.look.tasks:
        if task.seccomp:
            yield blocker(
                "own-seccomp",
                "seccomp",
                "The process runs under seccomp, and so does gpuckpt: CRIU could not suspend it.",
                "Run gpuckpt on the host itself, outside containers and services that set filters.",
                task.process.pid,
            )
            return


RULES: Final[tuple[Rule, ...]] = (ptrace_forbidden, own_seccomp)
