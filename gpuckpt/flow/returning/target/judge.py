"""The judge of a target: all that is different or short, at once, and what it amounts to."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, HostMismatch, ImageUnsupported
from gpuckpt.flow.returning.target import (
    carried,
    network,
    numbers,
    owners,
    places,
    room,
    setting,
    versions,
)
from gpuckpt.flow.returning.target.facts import look_again
from gpuckpt.flow.returning.target.rule import some
from gpuckpt.model import Severity
from gpuckpt.tools.diag import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.returning.target.rule import Rule
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.gpuplan import GpuPlan
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding
    from gpuckpt.tools.diag import Connection

RULES: Final[tuple[Rule, ...]] = (
    *setting.RULES,
    *owners.RULES,
    *numbers.RULES,
    *network.RULES,
    *places.RULES,
    *versions.RULES,
    *carried.RULES,
    *room.RULES,
)
# those about what does not pass by itself and belongs to the host: for verify --host
LASTING: Final[tuple[Rule, ...]] = (
    setting.needs,
    setting.criu,
    setting.gates,
    *owners.RULES,
    places.files,
    *versions.RULES,
)

# What passes by itself, and for how long a restore waits for it, in seconds: zombies wait for an
# init that polls, the kernel keeps closed connections in TIME_WAIT for 60 s, a dead process's GPU
# memory is given back a moment after its end.
PATIENCE: Final = {"pid-zombie": 30.0, "port-lingering": 65.0, "gpu-memory": 15.0}
POLL_SECONDS: Final = 0.2
FORCE: Final = "--force-gate ID overrides one named gate."


def judge(manifest: Manifest, facts: TargetFacts, rules: tuple[Rule, ...] = RULES) -> list[Finding]:
    """Return every finding, blockers first, otherwise in the order of the rules."""
    found = [finding for rule in rules for finding in rule(manifest, facts)]
    return sorted(found, key=lambda one: not one.blocks)


def refusal(findings: Iterable[Finding], force: frozenset[str]) -> GpuckptError | None:
    """Return the error that the blockers amount to, None if all are forced or there is none."""
    closed = [finding for finding in findings if finding.blocks and not _forced(finding, force)]
    if not closed:
        return None
    unknown = [finding.object for finding in closed if finding.id == "need-unknown"]
    if unknown:
        return ImageUnsupported(
            f"the image needs {', '.join(unknown)}, unknown to this gpuckpt", findings=closed
        )
    first = closed[0].reason.removesuffix(".")
    what = first if len(closed) == 1 else f"{len(closed)} things do not match"
    hint = FORCE if any(finding.id.startswith("gate-") for finding in closed) else ""
    return HostMismatch(f"this host cannot take the image: {what}", findings=closed, hint=hint)


def refuse(
    findings: Iterable[Finding], force: frozenset[str], plan: GpuPlan, waited: Container[str] = ()
) -> None:
    """Raise what the findings amount to, unless all that stops the restore is still waited for."""
    listed = list(findings)
    stopping = [one for one in listed if one.id not in waited]
    if refusal(stopping, force) and (error := refusal(listed, force)):
        error.gpus = plan.places
        raise error


def _forced(finding: Finding, force: frozenset[str]) -> bool:
    return finding.id in force and finding.id != "need-unknown"


def wait_for_room(
    tools: Toolbox,
    manifest: Manifest,
    facts: TargetFacts,
    interrupts: Interrupts,
    say: Callable[[str], None],
) -> list[Finding]:
    """Wait, bounded, for what passes by itself; return what is found then.

    What has not passed in its time is a blocker. `say` is told what is waited for, and how long.

    Raises:
        Interrupted: a signal came while waiting.
    """
    begun = time.monotonic()
    told = ""
    tried: set[Connection] = set()
    while True:
        if forgotten := _forget(tools, facts, tried):
            say(forgotten)
            facts = look_again(tools, manifest, facts)
        findings = judge(manifest, facts)
        waited = time.monotonic() - begun
        passing = [one for one in findings if waited < PATIENCE.get(one.id, 0.0)]
        if not passing:
            return [_overdue(one) for one in findings]
        interrupts.check()
        told = _tell(passing[0], waited, told, say)
        time.sleep(POLL_SECONDS)
        tools.proc.reap(facts.taken)
        facts = look_again(tools, manifest, facts)


def _forget(tools: Toolbox, facts: TargetFacts, tried: set[Connection]) -> str:
    """Let the kernel forget closed connections on the job's ports, each tried once; say which.

    Nobody has them. What it cannot forget is waited for.
    """
    gone: list[Connection] = []
    for one in facts.remains:
        if one.closed and one not in tried:
            tried.add(one)
            with suppress(OSError):
                gone += [one] if tools.net.forget(one) else []
    if not gone:
        return ""
    states = ", ".join(sorted({NAMES[one.state] for one in gone}))
    places = [f"{one.ends[0]}:{one.ends[1]}" for one in gone]
    what = "a closed connection" if len(gone) == 1 else f"{len(gone)} closed connections"
    return f"forgot {what} ({states}) on {some(list(dict.fromkeys(places)))}"


def _tell(finding: Finding, waited: float, told: str, say: Callable[[str], None]) -> str:
    """Say once a second what is waited for: a silent minute looks like a hang."""
    left = int(PATIENCE[finding.id] - waited) + 1
    text = f"waiting for {finding.object}, at most {left} s: {finding.reason}"
    if text != told:
        say(text)
    return text


def _overdue(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.BLOCKER) if finding.id in PATIENCE else finding
