"""The rules of a driver call: the state before decides, the state after is what counts.

The one place that knows which state an action leads from and to. Nothing toggles: a process that
is already where the action leads is left alone, one that is anywhere else is refused.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from gpuckpt.model import CudaState
from gpuckpt.tools.cuda_driver import CallRefused, Driver, Unsettled
from gpuckpt.tools.cuda_hold import Hold, HoldFailed
from gpuckpt.tools.cuda_wire import Action, Answer, Ask

if TYPE_CHECKING:
    from gpuckpt.tools.cuda_target import Target

LEGAL: Final[dict[Action, tuple[CudaState, CudaState]]] = {
    "lock": (CudaState.RUNNING, CudaState.LOCKED),
    "checkpoint": (CudaState.LOCKED, CudaState.CHECKPOINTED),
    "restore": (CudaState.CHECKPOINTED, CudaState.LOCKED),
    "unlock": (CudaState.LOCKED, CudaState.RUNNING),
}
_UP: Final[dict[CudaState, tuple[Action, ...]]] = {
    CudaState.RUNNING: ("restore", "unlock"),
    CudaState.LOCKED: ("restore",),
}
_MAY_HAVE_KILLED: Final = frozenset({"OPERATING_SYSTEM", "UNKNOWN"})
POLL: Final = 0.05
_DYING: Final = 1.0  # seconds; the call that kills a process answers before the process is dead
_GONE: Final = "the process is gone"


def read_state(driver: Driver, pid: int, hold: Hold) -> CudaState:
    """Read the state, waiting for as long as the process is between two of them.

    Raises:
        CallRefused: the driver does not say, or the process cannot be asked.
    """
    try:
        with hold.awake():
            while True:
                try:
                    return driver.state(pid)
                except Unsettled:
                    time.sleep(POLL)
    except HoldFailed as why:
        raise CallRefused("NOT_STOPPED", str(why)) from why


def read_back(driver: Driver, target: Target, hold: Hold) -> CudaState | None:
    """Read the state after a call; None if it cannot be read or the process is dead."""
    if not target.alive():
        return None
    try:
        return read_state(driver, target.pid, hold)
    except CallRefused:
        return None


def ask_state(driver: Driver, target: Target | None, hold: Hold, ask: Ask) -> Answer:
    """Answer what state a process is in; NONE if it is gone."""
    if target is None or not target.alive():
        return Answer(id=ask.id, after=CudaState.NONE, gone=True, detail=_GONE)
    if target.stopped() and not hold.parked:
        detail = "the process is stopped, so the driver cannot ask it"
        return Answer(id=ask.id, error="STOPPED", detail=detail)
    try:
        now = read_state(driver, target.pid, hold)
    except CallRefused as why:
        if not target.alive():
            return Answer(id=ask.id, after=CudaState.NONE, gone=True, detail=_GONE)
        return Answer(id=ask.id, error=why.name, detail=why.detail)
    return Answer(id=ask.id, before=now, after=now)


def perform(driver: Driver, target: Target, hold: Hold, ask: Ask) -> Answer:
    """Take one step if it is legal, and read what became of it."""
    source, goal = LEGAL[ask.action]
    seen = ask_state(driver, target, hold, ask)
    before = seen.before
    if before is None:
        return msgspec.structs.replace(seen, error="GONE", after=None) if seen.gone else seen
    if before == goal:
        return seen
    if before != source:
        detail = f"cannot {ask.action} a process that is {before}, only one that is {source}"
        return msgspec.structs.replace(seen, error="ILLEGAL_STATE", detail=detail)
    refused, after = _step(driver, target, hold, ask)
    if after is CudaState.NONE:  # it has lost what it had: it is about to end
        _await_death(target)
    gone = after in {None, CudaState.NONE} and not target.alive()
    after = None if gone else after
    error, detail = _judge(ask.action, refused, after, gone=gone)
    return Answer(id=ask.id, error=error, before=before, after=after, gone=gone, detail=detail)


def _step(
    driver: Driver, target: Target, hold: Hold, ask: Ask
) -> tuple[CallRefused | None, CudaState | None]:
    """Make a call with the process's threads held as it needs, and read the state after it."""
    try:
        if ask.action == "checkpoint":
            hold.take()
        elif ask.action == "restore":
            hold.wake()
        refused = _call(driver, target.pid, ask)
    except HoldFailed as why:
        refused = CallRefused("NOT_STOPPED", str(why))
    if refused is not None and refused.name in _MAY_HAVE_KILLED:
        _await_death(target)
    after = read_back(driver, target, hold)
    # a process whose state is away must not run: its next CUDA call may crash it
    unsure = after is None and ask.action == "restore"
    if after is CudaState.CHECKPOINTED or unsure:
        if not hold.parked:
            hold.park()
    else:
        hold.let_go()
    return refused, after


def _judge(
    action: Action, refused: CallRefused | None, after: CudaState | None, *, gone: bool
) -> tuple[str, str]:
    """Return error and detail of a call that was made; both empty if it did what it should."""
    if gone:
        return "GONE", refused.detail if refused else _GONE
    if refused is not None:
        return refused.name, refused.detail
    if after != LEGAL[action][1]:
        now = after or "unknown"
        return "UNEXPECTED_STATE", f"the driver said {action} was done, the state reads {now}"
    return "", ""


def bring_back(driver: Driver, target: Target, hold: Hold, first: CudaState) -> CudaState | None:
    """Lead a process up to `first` (never down) and return where it is now.

    Up is from CHECKPOINTED over LOCKED to RUNNING; it stops at the first refusal.
    """
    for action in _UP.get(first, ()):
        if read_back(driver, target, hold) == LEGAL[action][0]:
            _step(driver, target, hold, Ask(id=0, action=action, pid=target.pid))
    return read_back(driver, target, hold)


def _call(driver: Driver, pid: int, ask: Ask) -> CallRefused | None:
    """Make the call; return the refusal instead of raising it."""
    try:
        if ask.action == "lock":
            driver.lock(pid, ask.timeout_ms)
        elif ask.action == "checkpoint":
            driver.checkpoint(pid)
        elif ask.action == "restore":
            driver.restore(pid, ask.gpu_map)
        else:
            driver.unlock(pid)
    except CallRefused as why:
        return why
    return None


def _await_death(target: Target) -> None:
    """Give a process that the call may have killed a moment to be seen dead.

    Measured on 580: a lock that crashes the process answers OPERATING_SYSTEM.
    """
    deadline = time.monotonic() + _DYING
    while target.alive() and time.monotonic() < deadline:
        time.sleep(POLL)
