"""Keeping a process's threads from running while the driver has taken its CUDA state away.

The driver's lock does not stop them. Measured on 580.159 (CUDA 13.0): calls on an idle stream,
event or context (cuStreamQuery, cuEventQuery, cuCtxSynchronize, as PyTorch's watchdog and many
servers make them all the time) go through a lock, and crash the process with SIGSEGV once it is
checkpointed. So every thread but the driver's own restore thread is trapped for the time of the
checkpoint, and the process is parked afterwards: stopped, with no instruction run in between. It
travels stopped through CRIU, is trapped again on the other side, and goes on once its state is
back.

Not by SIGSTOP alone: a thread that the driver starts for its work would join the group's stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.tools.procfs import numbers, parse_stat, parse_status, read

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_EVENT_STOP: Final = 128  # PTRACE_EVENT_STOP
_WALL: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_LIBC.ptrace.restype = ctypes.c_long
# a thread inside a system call that cannot be interrupted is trapped only when it comes back
PATIENCE: Final = 10.0
PARASITE_PATIENCE: Final = 2.0
_POLL: Final = 0.002


class HoldFailed(Exception):
    """A thread could not be trapped in time; all of them run again."""


class Hold:
    """The threads of one process, all but `spared`, trapped or free. For one thread of ours only.

    `spared` is the driver's restore thread; 0 means that it is not known, and nothing is held.
    """

    def __init__(self, pid: int, spared: int, *, parked: bool = False) -> None:
        """Hold nothing yet; `parked` for a process that came parked out of an image."""
        self.spared = spared
        self.parked = parked and spared != 0
        self._pid = pid
        self._trapped: dict[int, int] = {}  # thread id to the signal it was about to get
        self._masks: dict[int, str] = {}  # thread id to the signals it blocked when it was parked
        self._seized: set[int] = set()  # ours, but did not stop in time

    def take(self) -> None:
        """Trap every thread that runs, those that begin meanwhile too.

        Raises:
            HoldFailed: one could not be trapped.
        """
        self._take_but([])

    def _take_but(self, others: Collection[int]) -> None:
        if not self.spared:
            return
        ends = time.monotonic() + PATIENCE
        try:
            while fresh := [tid for tid in self._free() if tid not in others]:
                for tid in fresh:
                    self._trap(tid, ends)
        except (OSError, HoldFailed) as why:
            self.let_go()
            raise HoldFailed(str(why)) from why

    def let_go(self) -> None:
        """Let every trapped thread go on as if nothing had been."""
        for tid in [*self._trapped, *self._seized]:
            try:
                _ptrace(_DETACH, tid, self._trapped.pop(tid, 0))
            except ProcessLookupError:
                if not _ended(tid):
                    self._seized.add(tid)  # nobody can let go of a thread that does not stand
                    continue
            self._seized.discard(tid)

    def park(self) -> None:
        """Stop the whole process and let go of its threads; none of them runs any further."""
        if not self.spared:
            return
        if not self._masks:
            self._masks = {tid: self._mask(tid) for tid in self._trapped}
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGSTOP)
        # the spared one first: from then on whoever is let go finds the whole group stopped
        self._wait_stopped([self.spared])
        self.parked = True
        self.let_go()
        self._wait_stopped(numbers(f"/proc/{self._pid}/task"))

    def wake(self) -> None:
        """Let the spared thread of a parked process run, and it alone.

        Raises:
            HoldFailed: another one could not be trapped; the process stays parked.
        """
        if self.parked:
            foreign = [tid for tid, mask in self._masks.items() if self._mask(tid) != mask]
            self._take_but(foreign)
            os.kill(self._pid, signal.SIGCONT)
            self.parked = False
            self._leave_parasite(foreign)
            try:
                self.take()
            except HoldFailed:
                self.park()
                raise

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the spared thread of a parked process run for a question, then park it again.

        The driver answers nothing about a process whose restore thread is stopped: it waits.

        Raises:
            HoldFailed: as in `wake`.
        """
        if not self.parked:
            yield
            return
        self.wake()
        try:
            yield
        finally:
            self.park()

    def _leave_parasite(self, tids: Iterable[int]) -> None:
        """Let threads run until they are out of the code that CRIU had injected.

        A CRIU that was killed leaves them in there, with all signals blocked, in memory that it
        mapped where the driver's had been: the driver's restore would pull it from under them.
        They leave it by themselves as soon as they may run (seen in 4.2.1).
        """
        ends = time.monotonic() + PARASITE_PATIENCE
        for tid in tids:
            while self._mask(tid) not in {self._masks[tid], ""} and time.monotonic() < ends:
                time.sleep(_POLL)

    def _mask(self, tid: int) -> str:
        raw = read(f"/proc/{self._pid}/task/{tid}/status")
        return parse_status(raw).get("SigBlk", "") if raw else ""

    def _wait_stopped(self, tids: Iterable[int]) -> None:
        ends = time.monotonic() + PATIENCE
        for tid in tids:
            while self._state(tid) not in "TtZX" and time.monotonic() < ends:
                time.sleep(_POLL)

    def _free(self) -> list[int]:
        threads = numbers(f"/proc/{self._pid}/task")
        free = [tid for tid in threads if tid != self.spared and tid not in self._trapped]
        # one that has ended never stops; a first thread that has stays listed with the others
        return [tid for tid in free if self._state(tid) not in "ZX"]

    def _trap(self, tid: int, ends: float) -> None:
        if tid not in self._seized:
            try:
                _ptrace(_SEIZE, tid)
            except OSError:
                if self._state(tid) not in "ZX":
                    raise
                return
        self._seized.add(tid)
        with suppress(ProcessLookupError):  # it has just ended; the wait says so
            _ptrace(_INTERRUPT, tid)
        while not (found := os.waitpid(tid, _WALL | os.WNOHANG))[0]:
            if time.monotonic() >= ends:
                raise HoldFailed(f"thread {tid} did not stop within {PATIENCE:g} s")
            time.sleep(_POLL)
        self._seized.discard(tid)
        status = found[1]
        if os.WIFSTOPPED(status):
            event = status >> 16 == _EVENT_STOP
            self._trapped[tid] = 0 if event else os.WSTOPSIG(status)

    def _state(self, tid: int) -> str:
        raw = read(f"/proc/{self._pid}/task/{tid}/stat")
        return parse_stat(raw).state if raw else "X"


def _ended(tid: int) -> bool:
    """Whether a thread that was ours has ended; if so its process need not wait for us."""
    try:
        found, status = os.waitpid(tid, _WALL | os.WNOHANG)
    except ChildProcessError:
        return True
    return bool(found) and not os.WIFSTOPPED(status)


def _ptrace(request: int, tid: int, data: int = 0) -> None:
    if _LIBC.ptrace(request, tid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
