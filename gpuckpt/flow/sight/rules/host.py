"""Rules about the host, as far as it decides whether this job can be dumped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.model import Version, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

# clone3 with set_tid, by which CRIU gives a restored task its old pid
OLDEST_KERNEL: Final = Version("5.9")
# kernels, and the CRIU that understands them; for 7.0 it is the layout of restartable sequences
_NEEDS_CRIU: Final = ((Version("7.0"), Version("4.2.1")),)
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


def kernel(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A kernel may be too old for a restore, or newer than CRIU understands."""
    here = Version(facts.host.kernel)
    if here < OLDEST_KERNEL:
        yield warning(
            "kernel-too-old",
            f"Linux {here}",
            "This kernel cannot give a restored process its old pid.",
            f"Restore on a host with Linux {OLDEST_KERNEL} or newer.",
        )
    for since, needed in _NEEDS_CRIU:
        if facts.criu is not None and here >= since and facts.criu < needed:
            yield blocker(
                "criu-too-old",
                f"CRIU {facts.criu}, Linux {here}",
                f"From Linux {since} on only CRIU {needed} or newer can restore what it dumps.",
                "Install a newer CRIU: bin/install-criu.",
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


RULES: Final[tuple[Rule, ...]] = (kernel, ptrace_forbidden, own_seccomp)
