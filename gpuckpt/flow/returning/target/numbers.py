"""Rules about the numbers a job had: pids, threads, groups and sessions that others use here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuckpt.flow.returning.target.rule import Rule, name, some
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding, Process

_INIT = 1


def without_us(facts: TargetFacts) -> TargetFacts:
    """Return the facts for one who only looks: a restore is another process, with other numbers."""
    others = {
        number: user
        for number, user in facts.taken.items()
        if user is None or user.pid != os.getpid()
    }
    return replace(facts, taken=others)


def taken(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """CRIU gives every task its old number; the kernel refuses one that is in use in any way."""
    users: dict[int, tuple[Process, list[int]]] = {}
    for number, user in facts.taken.items():
        if user is None:
            yield _unseen(number)
        elif user.pid not in facts.running:
            users.setdefault(user.pid, (user, []))[1].append(number)
    making = {pid: one.owner.pid for one in facts.others for pid in one.pids}
    for user, used in users.values():
        if user.pid in making:
            yield _made(making[user.pid], used)
        elif user.pid == os.getpid():
            yield _ours(used)
        else:
            yield _zombie(user, used) if user.zombie else _living(manifest, user, used)


def _made(owner: int, used: list[int]) -> Finding:
    """Nobody should end what another restore is making."""
    return blocker(
        "pid-taken",
        f"pid {some(used)}",
        f"The job's pid {used[0]} is being restored by another gpuckpt, process {owner}.",
        "Wait until that has ended.",
        owner,
    )


def _ours(used: list[int]) -> Finding:
    """Soon after a boot the kernel gives just these numbers out."""
    return blocker(
        "pid-taken",
        f"pid {some(used)}",
        f"The job's pid {used[0]} is one that this very gpuckpt has got.",
        "Retry: the next one gets another.",
        os.getpid(),
    )


def _unseen(number: int) -> Finding:
    return blocker(
        "pid-taken",
        f"pid {number}",
        f"The job's number {number} is in use, by whom cannot be seen.",
        "Retry; if it stays so, look for it from outside this container.",
    )


def _living(manifest: Manifest, user: Process, used: list[int]) -> Finding:
    root = manifest.root_pid
    hint = "End it and retry" if root in used else "End it, or wait for its end, and retry"
    return blocker(
        "pid-taken",
        f"pid {some(used)}",
        f"The job's {_as(user, used[0])} is taken by {name(user)}.",
        f"{hint}, or restore with --pid-namespace: the job then has pids of its own.",
        user.pid,
    )


def _as(user: Process, number: int) -> str:
    """Say what a number is to its user."""
    if number == user.pid or number in user.threads:
        return f"pid {number}"
    return f"number {number}, as its {'group' if number == user.pgid else 'session'},"


def _zombie(user: Process, used: list[int]) -> Finding:
    """One that init will reap passes by itself; a parent that lives may never wait for it."""
    make = warning if user.ppid == _INIT else blocker
    return make(
        "pid-zombie",
        f"pid {some(used)}",
        f"The job's pid {used[0]} is taken by process {user.pid}, a zombie that process "
        f"{user.ppid} has not waited for.",
        "A restore waits for it, for half a minute; if it stays, have its parent wait for it or "
        "end its parent.",
        user.pid,
    )


def running(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Two copies of a job write into the same files; the numbers alone would not say it is one."""
    if not facts.running:
        return
    pids = sorted(facts.running)
    before = facts.restored
    again = before is not None and any(ref.pid in facts.running for ref in before.known)
    if again and before is not None:
        last = any(ref.pid in facts.running for ref in before.processes)
        when = f"at {before.at}" if last else "before"
        how = "started from its beginning" if last and before.cold else "restored"
        reason = f"This very job was {how} here {when} and runs: process "
    else:
        reason = "The job that was dumped still runs here: process "
    if facts.apart:
        yield warning(
            "job-runs",
            f"pid {some(pids)}",
            f"{reason}{some(pids)}. This will be a second copy of it.",
            "Make sure that both can use the same files and addresses: only /dev/shm is apart.",
            pids[0],
        )
        return
    yield blocker(
        "job-runs",
        f"pid {some(pids)}",
        f"{reason}{some(pids)}.",
        "End it first if it shall go back to where the image was made; a second copy of it needs "
        "--pid-namespace."
        if again or manifest.options.leave_running
        else "End it first: what it did since the dump would be done again.",
        pids[0],
    )


def before(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """Whatever the job did after an earlier restore is done a second time."""
    earlier = facts.restored
    if earlier is not None and not (facts.running or earlier.cold):
        yield warning(
            "restored-before",
            earlier.image,
            f"The image was restored here before, at {earlier.at}, and that job has ended.",
            "Keep what it wrote since then, if that matters: it will be written again.",
        )


def copies(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A supervisor may have started the job anew meanwhile: then there would be two."""
    yield from facts.copies


RULES: Final[tuple[Rule, ...]] = (running, taken, copies, before)
