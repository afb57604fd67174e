"""The judge: what of the facts stops a dump, and what endangers it. Pure, and all at once.

One rule is one small function in a list of flow/sight/rules; a new rule is a new function there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.errors import (
    Blocked,
    CriuBroken,
    CriuMissing,
    CriuTooOld,
    DriverUnfit,
    GpuckptError,
    HostUnfit,
    ImageExists,
    NoSpace,
    NotPrivileged,
    NotWritable,
)
from gpuckpt.flow.sight.rules import (
    carrying,
    cooperation,
    deleted,
    driver,
    files,
    fingerprints,
    gpu,
    host,
    kinds,
    locks,
    memory,
    peers,
    places,
    process,
    ranks,
    room,
    root,
    software,
    strays,
    supervisor,
    tcp,
)
from gpuckpt.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices, Rule
    from gpuckpt.model import Finding

RULES: Final[tuple[Rule, ...]] = (
    *root.RULES,
    *process.RULES,
    *driver.RULES,
    *gpu.RULES,
    *fingerprints.RULES,
    *ranks.RULES,
    *cooperation.RULES,
    *kinds.RULES,
    *files.RULES,
    *deleted.RULES,
    *carrying.RULES,
    *locks.RULES,
    *memory.RULES,
    *places.RULES,
    *tcp.RULES,
    *peers.RULES,
    *host.RULES,
    *supervisor.RULES,
    *software.RULES,
    *strays.RULES,
    *room.RULES,
)


# blockers that --ignore may override, and when that makes sense; with any other the dump would
# fail all the same, or harm the job
IGNORABLE: Final[dict[str, str]] = {
    "space": "the bytes are known to compress better than by half",
    "memory-host": "there is swap, or memory will be free in time",
    "gpu-shared": "whoever else uses the GPU takes no more of its memory meanwhile",
    "pipe-outside": "the job does without whoever reads its output",
    "platform": "the driver is known to support checkpoints on it",
    "managed-memory": "what is counted is known not to be managed memory",
    "gpu-memory-exported": "the handle is known to be closed before the dump",
    "nccl": "the job sets NCCL's variables by itself, or its communicators have one rank each",
    "ranks-absent": "the variables are left over and the other ranks do not exist",
    "profiler": "the tool is known not to be active",
    "supervised": "whoever watches the job is known to do nothing when it goes",
    "confined": "a small job under the same profile was dumped and restored",
    "jupyter-kernel": "the kernel is known to live on without its server",
    "socket-shared": "whoever shares the socket will have closed it before the restore",
    "lock-wanted": "whoever waits for the lock will have let go of it before the restore",
    "root-too-high": "this program itself is the job",
    "root-too-low": "the rest of the job does without this part",
}


def judge_dump(facts: DumpFacts, choices: DumpChoices) -> tuple[Finding, ...]:
    """Return every finding, blockers first, otherwise in the order of the rules.

    A blocker that is to be ignored, and may be, comes as a warning.
    """
    told = (*facts.obstacles, *(one for rule in RULES for one in rule(facts, choices)))
    found = [one for each in told if (one := cooperation.adjusted(each, facts, choices))]
    waived = choices.ignore & IGNORABLE.keys()
    found = [replace(one, severity=Severity.WARNING) if one.id in waived else one for one in found]
    return tuple(sorted(_of_the_right_tree(found), key=lambda one: not one.blocks))


def _of_the_right_tree(found: list[Finding]) -> list[Finding]:
    """What else would stop a dump of a shell says nothing of the job below it."""
    if not any(one.id == "root-too-high" and one.blocks for one in found):
        return found
    return [one for one in found if one.id == "root-too-high" or one.id in _HOST]


# blockers that lie with the host rather than with the job, and what they amount to
_HOST: Final[dict[str, type[GpuckptError]]] = {
    "criu-missing": CriuMissing,
    "criu-too-old": CriuTooOld,
    "criu-broken": CriuBroken,
    "not-privileged": NotPrivileged,
    "ptrace-forbidden": HostUnfit,
    "own-seccomp": NotPrivileged,
    "driver-unfit": DriverUnfit,
    "driver-too-old": DriverUnfit,
    "driver-upgrade": DriverUnfit,
    "platform": DriverUnfit,
    "mig": DriverUnfit,
    "memory-host": NoSpace,
    "space": NoSpace,
    "not-writable": NotWritable,
    "state-noexec": HostUnfit,
    "image-exists": ImageExists,
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
