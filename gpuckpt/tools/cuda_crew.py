"""The processes that make driver calls, as a crew: started, greeted, replaced, asked side by side.

Decides how the driver is reached, and keeps what is needed to start a call process anew if one
ends. What an answer means for an operation is not its business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import DriverUnfit
from gpuckpt.model import CudaBackend, CudaOutcome, CudaState
from gpuckpt.tools.cuda_caller import Caller, listen
from gpuckpt.tools.cuda_wire import Ask
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuckpt.tools.run import Runner


class Patience(Value, frozen=True):
    """How long to wait for answers, in seconds, before a process is reported as hanging.

    `start`: the driver library starts slowly without persistence mode and on hosts with many
    GPUs. `claim`: after a gpuckpt was killed its processes are still being brought back. `grace`
    is added to a lock's own timeout. `copy`: a checkpoint or restore moves 1 to 2 GB/s on slow
    hosts, for up to a terabyte.
    """

    start: float = 60.0
    question: float = 15.0
    claim: float = 60.0
    grace: float = 30.0
    copy: float = 1800.0
    unlock: float = 120.0


class Crew:
    """One call process for every opened process, and a scout that reads any process's state."""

    def __init__(
        self, runner: Runner, program: str | None, fallback: str | None, patience: Patience
    ) -> None:
        """Start nothing yet; see Cuda for the arguments."""
        self._runner = runner
        self._program = program
        self._fallback = fallback
        self._patience = patience
        self._backend: CudaBackend | None = None
        self._scout: Caller | None = None
        self._callers: dict[int, Caller] = {}
        self._first: dict[int, CudaState] = {}
        self._threads: dict[int, int] = {}
        self._abandoned: list[Caller] = []
        self._spare: list[Caller] = []

    def __contains__(self, pid: int) -> bool:
        """Whether this process was opened."""
        return pid in self._callers

    def backend(self) -> CudaBackend:
        """Return what makes the calls; finds out at the first use.

        Raises:
            DriverUnfit: nothing here can.
        """
        if self._backend is None:
            self._backend = self._find()
        return self._backend

    def muster(self, count: int) -> None:
        """Start call processes ahead, one for the scout and `count` to be opened, and do not wait.

        Each takes 0.3 to 0.4 s to load the driver (H200 host, driver 580), which goes by beside
        other work.
        """
        while len(self._spare) < count + (self._scout is None):
            self._spare.append(Caller(self._runner, self._program))

    def _find(self) -> CudaBackend:
        """Try the ways to the driver, best first; the caller that works becomes the scout."""
        ways = [self._program] if self._program else [None, self._fallback]
        faults: list[str] = []
        for program in dict.fromkeys(ways):
            caller = self._caller(program)
            listen([caller], self._patience.start)
            if not (fault := self._fault(caller)) and caller.hello is not None:
                if program != self._program:  # those that wait went the way that leads nowhere
                    self._abandoned += self._spare
                    self._spare = []
                self._scout, self._program = caller, program
                hello = caller.hello
                return CudaBackend(hello.backend, hello.version, hello.cuda, "; ".join(faults))
            faults.append(fault)
            self._abandoned.append(caller)
        raise DriverUnfit(
            f"the NVIDIA driver cannot checkpoint processes: {'; '.join(faults)}",
            hint="It takes driver 570 or newer with cuda-python 13.3.1 or newer, "
            "or driver 555 or newer with NVIDIA's cuda-checkpoint program in PATH.",
        )

    def _fault(self, caller: Caller) -> str:
        if caller.hello is not None:
            return caller.hello.fault
        if caller.lost:
            return "the process for the driver's calls ended at once"
        return f"the driver did not start within {self._patience.start:g} s"

    def open(
        self, first: Mapping[int, CudaState], threads: Mapping[int, int]
    ) -> dict[int, CudaOutcome]:
        """Give each process a call process of its own and tell it the first state.

        `threads` are the restore threads of those that are parked.
        """
        self.backend()
        self._first.update(first)
        self._threads.update(threads)
        for pid in first:
            if pid not in self._callers or self._callers[pid].lost:
                self._hire(pid)
        listen([self._callers[pid] for pid in first], self._patience.start)
        wait = int(self._patience.claim * 1000)
        asks = {
            pid: Ask(
                id=0,
                action="open",
                pid=pid,
                first=first[pid],
                timeout_ms=wait,
                restore_thread=self._threads.get(pid, 0),
            )
            for pid in first
        }
        told = self._tell(asks, self._patience.claim + self._patience.question)
        self._threads.update({pid: one.restore_thread for pid, one in told.items() if one.ok})
        return told

    def ask(self, asks: Mapping[int, Ask], patience: float) -> dict[int, CudaOutcome]:
        """Ask opened processes all at once and wait for all.

        One that is still busy with an earlier ask gets a moment to finish it. One that ended is
        replaced first.
        """
        for pid in asks:
            self._callers[pid].listen()  # hears the end of one that nobody was waiting for
        lost = [pid for pid in asks if self._callers[pid].lost]
        if lost:
            self.open({pid: self._first[pid] for pid in lost}, {})
        listen([self._callers[pid] for pid in asks], self._patience.question)
        return self._tell(asks, patience)

    def _tell(self, asks: Mapping[int, Ask], patience: float) -> dict[int, CudaOutcome]:
        free = [pid for pid in asks if self._callers[pid].free]
        for pid in free:
            self._callers[pid].ask(asks[pid])
        listen([self._callers[pid] for pid in free], patience)
        return {pid: self._outcome(ask, self._callers[pid]) for pid, ask in asks.items()}

    def _hire(self, pid: int) -> None:
        if pid in self._callers:
            self._callers[pid].let_go()
        self._callers[pid] = self._caller(self._program)

    def _caller(self, program: str | None) -> Caller:
        """Return a call process that waits already, or a new one."""
        while program == self._program and self._spare:
            spare = self._spare.pop()
            listen([spare], self._patience.start)
            spare.listen()  # hears the end of one that nobody was waiting for
            if not spare.lost:
                return spare
            spare.let_go()
        return Caller(self._runner, program)

    def _outcome(self, ask: Ask, caller: Caller) -> CudaOutcome:
        if not caller.lost:
            return outcome(ask, caller)
        seen = self.scout(ask.pid)
        return CudaOutcome(
            ask.pid,
            ask.action,
            "GONE" if seen.gone else "CALLER_LOST",
            after=None if seen.gone else seen.after,
            gone=seen.gone,
            detail="the process that makes the driver's calls has ended",
        )

    def scout(self, pid: int) -> CudaOutcome:
        """Read the state of any process; one that hangs costs us the scout."""
        self.backend()
        if self._scout is not None:
            self._scout.listen()
        if self._scout is None or self._scout.lost:
            self._scout = self._caller(self._program)
            listen([self._scout], self._patience.start)
        scout, ask = self._scout, Ask(id=0, action="state", pid=pid)
        if scout.free:
            scout.ask(ask)
            listen([scout], self._patience.question)
        told = outcome(ask, scout)
        if not scout.free:
            self._abandoned.append(scout)
            self._scout = None
        return told

    def let_go(self) -> None:
        """Release all; nobody is killed."""
        scouts = [self._scout] if self._scout is not None else []
        callers: Collection[Caller] = [
            *self._callers.values(),
            *self._abandoned,
            *self._spare,
            *scouts,
        ]
        self._callers, self._first, self._threads = {}, {}, {}
        self._abandoned, self._spare, self._scout = [], [], None
        for caller in callers:
            caller.release()
        for caller in callers:
            caller.let_go()


def outcome(ask: Ask, caller: Caller) -> CudaOutcome:
    """Say what came of an ask, for a caller that was asked or could not be."""
    answer = caller.answer
    if answer is not None:
        return CudaOutcome(
            ask.pid,
            ask.action,
            answer.error,
            before=answer.before,
            after=answer.after,
            gone=answer.gone,
            detail=answer.detail,
            restore_thread=answer.restore_thread,
            seconds=caller.seconds,
        )
    error = "CALLER_LOST" if caller.lost else "NO_ANSWER"
    doing = caller.asked.action if caller.asked else "start"
    detail = f"the driver has not come back from {doing} for {caller.seconds:.0f} s"
    if caller.lost:
        detail = "the process that makes the driver's calls has ended"
    return CudaOutcome(ask.pid, ask.action, error, detail=detail, seconds=caller.seconds)
