"""The program that makes the driver calls for one process and outlives gpuckpt if it must.

`python -m gpuckpt.tools.cuda_helper [--program CUDA_CHECKPOINT]`, JSON lines on stdin and stdout
(cuda_wire). One call at a time; nothing interrupts it: it lives in a session of its own, ignores
the signals that end programs, and gpuckpt never kills it in mid-call, because the driver and the
process would be left out of step.

It is also the dead man's switch. Opened for a process, it knows that process's first state. If its
stdin ends without a release, gpuckpt is dead: it waits until CRIU has let go of the process and its
GPU memory is free again, leads it back to its first state, and ends. Two things it leaves alone: a
process that is gone, since CRIU ended it after the image was complete; and one whose first state is
CHECKPOINTED, since CRIU has just restored that from an image and nobody has verified it. The image
is intact, the process waits for `gpuckpt repair`, and letting it run might make a second copy of a
job that somebody restores again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, Final

import msgspec

from gpuckpt.model import CudaState
from gpuckpt.tools.cuda_binary import Binary
from gpuckpt.tools.cuda_driver import CallRefused, Driver, DriverMissing, load_bindings
from gpuckpt.tools.cuda_hold import Hold
from gpuckpt.tools.cuda_steps import POLL, ask_state, bring_back, perform, read_back
from gpuckpt.tools.cuda_target import Claim, Room, Target
from gpuckpt.tools.cuda_wire import Answer, Ask, Hello, Line, line, read_ask
from gpuckpt.tools.nvidia import Nvidia
from gpuckpt.tools.run import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_HOLD: Final = 600.0  # seconds; CRIU may still be writing the last gigabytes
_DEAF: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class Switch:
    """What is to be done if gpuckpt dies."""

    def __init__(self, nvidia: Nvidia, longest_hold: float = LONGEST_HOLD) -> None:
        """Start with nothing to do."""
        self.target: Target | None = None
        self.hold = Hold(0, 0)
        self._first: CudaState | None = None
        self._room: Room | None = None
        self._claim: Claim | None = None
        self._nvidia = nvidia
        self._longest_hold = longest_hold

    def arm(self, driver: Driver, target: Target, ask: Ask) -> bool:
        """Remember the process, what it holds, and the state to lead it back to.

        False if another gpuckpt, or what is left of one, did not let go of it in time.
        """
        if self.target is None:
            claim = Claim(target)
            if not claim.take(ask.timeout_ms / 1000):
                return False
            self._claim = claim
            if ask.first in {CudaState.RUNNING, CudaState.LOCKED}:
                self._room = Room.of(target, self._nvidia)
            spared = ask.restore_thread or _restore_thread(driver, target)
            self.hold = Hold(target.pid, spared, parked=target.stopped())
        self.target = target
        self._first = ask.first
        return True

    def release(self) -> None:
        """Forget it: the process stays as it is."""
        self._first = None

    def act(self, driver: Driver) -> CudaState | None:
        """Lead the process back; None if there was nothing to do or nothing could be done."""
        if self.target is None or self._first is None:
            return None
        deadline = time.monotonic() + self._longest_hold
        while self.target.alive():
            held = self.target.held(parked=self.hold.parked)
            if not held and self._fits(driver, self.target):
                return bring_back(driver, self.target, self.hold, self._first)
            if time.monotonic() >= deadline:
                return None  # better suspended, for `gpuckpt repair`, than stuck for good
            time.sleep(POLL)
        return None

    def close(self) -> None:
        """Let others act on the process."""
        if self._claim is not None:
            self._claim.give_back()

    def _fits(self, driver: Driver, target: Target) -> bool:
        """Whether leading it back takes no GPU memory, or that memory is free."""
        if self._room is None:
            return True
        now = read_back(driver, target, self.hold)
        return now is not CudaState.CHECKPOINTED or self._room.enough()


def serve(driver: Driver, asks: IO[bytes], tell: Callable[[Line], None], switch: Switch) -> bool:
    """Answer asks until they end; whether gpuckpt said that it was done."""
    while True:
        raw = asks.readline()
        if not raw.endswith(b"\n"):  # the end, or half a line from a gpuckpt that was killed
            return False
        try:
            ask = read_ask(raw)
        except msgspec.DecodeError:
            return False
        if ask.action == "release":
            switch.release()
            return True
        tell(_answer(driver, switch, ask))


def _answer(driver: Driver, switch: Switch, ask: Ask) -> Answer:
    """Do what is asked; whatever goes wrong is an answer too."""
    try:
        if ask.action == "state":
            target = _target(switch, ask.pid)
            hold = switch.hold if target is switch.target else Hold(0, 0)
            return ask_state(driver, target, hold, ask)
        if ask.action == "open":
            return _open(driver, switch, ask)
        if switch.target is None or switch.target.pid != ask.pid:
            return Answer(id=ask.id, error="UNKNOWN", detail=f"pid {ask.pid} was never opened")
        return perform(driver, switch.target, switch.hold, ask)
    except Exception as why:  # noqa: BLE001 - this process must not end while it is armed
        return Answer(id=ask.id, error="UNKNOWN", detail=f"{type(why).__name__}: {why}")


def _open(driver: Driver, switch: Switch, ask: Ask) -> Answer:
    target = _target(switch, ask.pid)
    if target is not None and not switch.arm(driver, target, ask):
        return Answer(id=ask.id, error="BUSY", detail="another gpuckpt is at work on it")
    found = ask_state(driver, target, switch.hold, ask)
    if found.gone:
        return msgspec.structs.replace(found, error="GONE")
    return msgspec.structs.replace(found, restore_thread=switch.hold.spared)


def _restore_thread(driver: Driver, target: Target) -> int:
    """Ask for the thread to be spared; 0 if the driver does not say, or cannot be asked."""
    if target.stopped():
        return 0
    try:
        return driver.restore_thread(target.pid)
    except CallRefused:
        return 0


def _target(switch: Switch, pid: int) -> Target | None:
    """Return the process opened, or whichever has the pid now."""
    if switch.target is not None and switch.target.pid == pid:
        return switch.target
    return Target.look(pid)


def _load(arguments: list[str]) -> Driver:
    """Choose the way to the driver; restore needs it initialised in this very process."""
    if arguments[:1] == ["--program"]:
        return Binary(arguments[1], Runner())
    return load_bindings()


def main(arguments: list[str]) -> int:
    """Greet, serve, and bring the process back if gpuckpt died."""
    for signum in _DEAF:
        signal.signal(signum, signal.SIG_IGN)
    # Libraries print what they like to descriptor 1: only our own lines may reach gpuckpt.
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)

    def tell(message: Line) -> None:
        try:
            os.write(channel, line(message))
        except OSError:
            return  # nobody listens any more; the end of stdin says the same

    try:
        driver = _load(arguments)
    except DriverMissing as why:
        tell(Hello(fault=str(why)))
        return 1
    tell(Hello(backend=driver.backend, version=driver.version, cuda=driver.cuda))
    switch = Switch(Nvidia())
    if not serve(driver, sys.stdin.buffer, tell, switch):
        switch.act(driver)
    switch.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
