"""Jobs on a GPU for tests: started, watched by their log, and ended without harm to the host."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import CudaCallFailed
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda import choose
from gpuckpt.tools.run import Command, Runner
from tests.root.harness import exists

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS = Path(__file__).parent / "jobs"
PATIENCE = 120.0  # seconds; a driver without persistence mode starts slowly, big jobs copy long


class Job:
    """One job and its log."""

    def __init__(self, log: Path, argv: tuple[str, ...]) -> None:
        """Start it."""
        path = os.pathsep.join((str(JOBS), *sys.path))
        self.log = log
        self.child = Runner().start(Command(argv, env={"PYTHONPATH": path}))

    @staticmethod
    def script(name: str, log: Path, *arguments: str) -> Job:
        """Start one of the test jobs."""
        return Job(log, (sys.executable, str(JOBS / name), str(log), *arguments))

    @staticmethod
    def demo(log: Path) -> Job:
        """Start the job of the demo, on the GPU."""
        module = ("-m", "gpuckpt.demo_job", "--device", "gpu", "--log", str(log))
        return Job(log, (sys.executable, *module))

    @property
    def pid(self) -> int:
        """The job's pid."""
        return self.child.pid

    def lines(self) -> list[str]:
        """What its log says so far, whole lines only."""
        return self.log.read_text().split("\n")[:-1] if self.log.exists() else []

    def ticks(self) -> int:
        """How far it has counted."""
        return sum(line.startswith("tick ") for line in self.lines())

    def await_line(self, wanted: str) -> None:
        """Wait until the log has this line."""
        wait(lambda: wanted in self.lines(), f"{wanted!r} in {self.log}", self._ended)

    def counts_on(self, more: int = 5) -> None:
        """Wait until it has counted on by `more` ticks, without a failure."""
        goal = self.ticks() + more
        wait(lambda: self.ticks() >= goal, f"tick {goal} in {self.log}", self._ended)
        assert not [line for line in self.lines() if line.startswith("failed")]

    def _ended(self) -> str:
        status = self.child.poll()
        return "" if status is None else f"the job ended with status {status}: {self.lines()[-3:]}"

    def end(self) -> None:
        """End it by SIGTERM, whatever state a failed test has left it in.

        It is never killed with a live CUDA state: on one driver (595, open module) that took the
        host down after a restore. If it does not end by itself it is suspended first.
        """
        if self.child.poll() is None:
            bring_back([self.pid])
            self.child.terminate()
            if self.child.wait(PATIENCE) is None:
                suspend(self.pid)
                self.child.kill()
                self.child.wait(PATIENCE)
        self.child.close()


def wait(
    what: Callable[[], bool],
    name: str,
    given_up: Callable[[], str] = lambda: "",
    patience: float = PATIENCE,
) -> None:
    """Wait until something holds, bounded; `given_up` may know that it never will."""
    deadline = time.monotonic() + patience
    while not what():
        if why := given_up():
            pytest.fail(f"no {name}: {why}")
        if time.monotonic() >= deadline:
            pytest.fail(f"no {name} within {patience:g} s")
        time.sleep(0.05)


def end_restored(pid: int) -> None:
    """End a restored process politely; one that does not end is suspended and killed, and told."""
    if not exists(pid):
        return
    os.kill(pid, signal.SIGTERM)
    try:
        wait(lambda: not exists(pid), f"end of restored process {pid}")
    except pytest.fail.Exception:
        suspend(pid)
        os.kill(pid, signal.SIGKILL)
        raise


def bring_back(pids: list[int]) -> None:
    """Let processes go on whose GPU state a failed test has left away."""
    cuda = choose(Runner())
    for pid in pids:
        with suppress(CudaCallFailed):
            if cuda.states([pid])[pid] in {CudaState.LOCKED, CudaState.CHECKPOINTED}:
                cuda.open({pid: CudaState.RUNNING})
                cuda.restore([pid], {})  # nothing to do if it is only locked
                cuda.unlock([pid])
    cuda.close()


def suspend(pid: int) -> None:
    """Take a process's GPU state away, so that it may be killed."""
    cuda = choose(Runner())
    cuda.open({pid: CudaState.CHECKPOINTED})
    cuda.lock([pid], 30)
    cuda.checkpoint([pid])
    cuda.close()
