"""Bringing a job that cooperates to rest at one step, and letting it go on.

The other side, and why all of it stops at the same step or none, is gpuckpt/cooperate.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import QuiesceFailed, QuiesceTimeout
from gpuckpt.model import blocker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding
    from gpuckpt.tools.cooperation import Rank

# how long a job may take to have all again; NCCL between two GPUs takes 0.2 s
GO_ON_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.002
# a process that has waited for a gpuckpt that died goes on within a few milliseconds
MOMENT_SECONDS: Final = 0.1
_LARGEST_MARGIN: Final = 1 << 16


def agree(tools: Toolbox, interrupts: Interrupts, pids: Sequence[int], timeout: float) -> int:
    """Hold all processes at the end of one step; return which.

    Raises:
        QuiesceTimeout: one has not come there within `timeout` seconds.
        QuiesceFailed: one has ended or waits already.
        Interrupted: a signal came.
    """
    tools.ranks.ask(pids)
    ends = time.monotonic() + timeout
    target, margin = 0, 1
    for one in _all(tools, pids):
        if one.waits:
            hint = f"`gpuckpt repair {one.pid}` lets it go on."
            raise QuiesceFailed(f"process {one.pid} stands at step {one.step} already", hint=hint)
    while True:
        ranks = _all(tools, pids)
        if target and all(one.arrived == target for one in ranks):
            return target
        if not target or (_passed(ranks, target) and _passed(_all_later(tools, pids), target)):
            # never lower: who waits for an older target goes on to this one
            target = max(target, *(one.step for one in _all(tools, pids))) + margin
            margin = min(2 * margin, _LARGEST_MARGIN)
            tools.ranks.target(target)
            continue
        interrupts.check()
        if time.monotonic() >= ends:
            late = [one for one in ranks if one.arrived != target]
            raise QuiesceTimeout(
                f"{_where(late)} and did not come to the end of step {target} in {timeout:g} s"
            )
        time.sleep(POLL_SECONDS)


def rest(
    tools: Toolbox, interrupts: Interrupts, pids: Sequence[int], step: int, timeout: float
) -> None:
    """Let all processes, which wait at this step, let go of what cannot be dumped.

    Raises:
        QuiesceTimeout: one has not done so within `timeout` seconds.
        QuiesceFailed: one could not, or has ended.
        Interrupted: a signal came.
    """
    tools.ranks.confirm(step)
    ends = time.monotonic() + timeout
    while True:
        ranks = _all(tools, pids)
        for one in ranks:
            if one.failed:
                raise QuiesceFailed(
                    f"process {one.pid} could not let go at step {step}: {one.text}",
                    hint="It is the job's own callback: see its output.",
                )
        late = [one for one in ranks if one.quiet != step]
        if not late:
            break
        interrupts.check()
        if time.monotonic() >= ends:
            names = ", ".join(str(one.pid) for one in late)
            raise QuiesceTimeout(f"process {names} did not let go at step {step} in {timeout:g} s")
        time.sleep(POLL_SECONDS)
    tools.ranks.close()


def still_quiet(tools: Toolbox, pids: Collection[int]) -> None:
    """Look once more.

    Raises:
        QuiesceFailed: a process has gone on by itself, or has ended.
    """
    for one in _all(tools, pids):
        if not one.quiet:
            raise QuiesceFailed(f"process {one.pid} has gone on by itself at step {one.step}")


def go_on(tools: Toolbox, pids: Collection[int]) -> list[Finding]:
    """Let all go on, and wait until they have; return those that do not.

    Who has ended by now is missed by others.
    """
    tools.ranks.release(pids)
    ends = time.monotonic() + GO_ON_SECONDS
    while True:
        ranks = tools.ranks.look(pids)
        failed = [one for one in ranks if one.failed and one.text.startswith("up:")]
        waiting = [one for one in ranks if one.waits and one not in failed]
        if not waiting or time.monotonic() >= ends:
            break
        time.sleep(POLL_SECONDS)
    tools.ranks.close()
    return [_failed(one) for one in failed] + [_waiting(one) for one in waiting]


def standing(tools: Toolbox, pids: Collection[int]) -> tuple[Rank, ...]:
    """Return those that stand at a step although no gpuckpt holds them there."""
    found = _alone(tools, pids)
    if found:
        time.sleep(MOMENT_SECONDS)
        found = _alone(tools, pids)
    return found


def _alone(tools: Toolbox, pids: Collection[int]) -> tuple[Rank, ...]:
    return tuple(one for one in tools.ranks.look(pids) if one.waits and not one.asked)


def _all(tools: Toolbox, pids: Iterable[int]) -> tuple[Rank, ...]:
    wanted = tuple(pids)
    ranks = tools.ranks.look(wanted)
    if gone := sorted({*wanted} - {one.pid for one in ranks}):
        names = ", ".join(map(str, gone))
        raise QuiesceFailed(f"process {names} ended, or cooperates no more, when it should rest")
    return ranks


def _all_later(tools: Toolbox, pids: Iterable[int]) -> tuple[Rank, ...]:
    """Look a moment later: who comes to its target says so only after it has said the step."""
    time.sleep(POLL_SECONDS)
    return _all(tools, pids)


def _passed(ranks: Iterable[Rank], target: int) -> bool:
    return any(one.step >= target and one.arrived != target for one in ranks)


def _where(ranks: Iterable[Rank]) -> str:
    return ", ".join(f"process {one.pid} is at step {one.step}" for one in ranks)


def _failed(one: Rank) -> Finding:
    reason = f"Process {one.pid} could not go on after step {one.failed}: {one.text}."
    remedy = "It is the job's own callback: look at the job's output."
    return blocker("rank-failed", f"pid {one.pid}", reason, remedy, one.pid)


def _waiting(one: Rank) -> Finding:
    reason = (
        f"Process {one.pid} was told to go on after step {one.step} and has not done so in "
        f"{GO_ON_SECONDS:g} s."
    )
    remedy = "Look at the job's output; all of its processes have to go on together."
    return blocker("rank-waits", f"pid {one.pid}", reason, remedy, one.pid)
