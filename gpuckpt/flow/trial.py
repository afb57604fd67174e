"""A trial: a small job of our own is dumped, is gone, is restored, and has lost nothing.

Doctor and demo both prove with it that this host can do what it shall do. Whatever happens, no
process and no file of the trial is left.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import gpuckpt
from gpuckpt import demo_job
from gpuckpt.errors import DumpFailed, RestoreFailed, ToolFailed, VerificationFailed
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work.tasks import end_restored, wait_gone
from gpuckpt.tools.run import Command, Runner
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import DumpResult, RestoreResult
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import ProcessRef
    from gpuckpt.tools.run import Child

# the first CUDA call of a host loads the driver: seconds, more without persistence mode
START_SECONDS = 120.0
COUNT_SECONDS = 30.0
END_SECONDS = 15.0
TICKS = 5
POLL_SECONDS = 0.05


class Trial(Value, frozen=True):
    """What a trial proved; `last` is the tick it was dumped at, `ticks` how far it counted."""

    device: str
    pid: int
    last: int
    ticks: int
    gpu_bytes: int
    dumped: DumpResult
    restored: RestoreResult


def trial(tools: Toolbox, device: str, reporter: Reporter, interrupts: Interrupts) -> Trial:
    """Dump and restore a counting job on `device` (gpu or cpu) and check its whole log.

    Raises:
        GpuckptError: what the dump or the restore failed with.
        ToolFailed: the job could not be started.
        VerificationFailed: it came back, and not as it was.
    """
    with tempfile.TemporaryDirectory(prefix="gpuckpt-trial-") as name:
        log = Path(name, "job.log")
        with _Job.started(tools, log, device, interrupts) as job:
            with reporter.step("start", f"counting on the {device}, pid {job.pid}"):
                job.count_to(TICKS, START_SECONDS)
            held = sum(use.bytes for use in tools.nvidia.uses([job.pid]))
            request = DumpRequest(job.pid, output=Path(name, "image"))
            dumped = dump(tools, request, reporter, interrupts)
            job.must_be_gone()
            last = job.ticks
            reporter.note(f"pid {job.pid} is gone; it had counted to {last}")
            back = RestoreRequest(dumped.image, settle=0.0, on_verify_fail="kill")
            restored = restore(tools, back, reporter, interrupts)
            with reporter.step("count on", f"from {last + 1}"):
                job.count_to(last + TICKS, COUNT_SECONDS)
            ticks = job.end()
        return Trial(device, job.pid, last, ticks, held, dumped, restored)


class _Job:
    """The job of a trial, under one pid before and after."""

    def __init__(self, tools: Toolbox, child: Child, log: Path, interrupts: Interrupts) -> None:
        self.pid = child.pid
        self._tools = tools
        self._child = child
        self._log = log
        self._interrupts = interrupts
        self._gone = False

    @classmethod
    @contextmanager
    def started(
        cls, tools: Toolbox, log: Path, device: str, interrupts: Interrupts
    ) -> Iterator[_Job]:
        """Start the job; at the end of the context no process of it is left."""
        program = (sys.executable, "-m", "gpuckpt.demo_job")
        # from a checkout the package is not installed
        env = {"PYTHONPATH": str(Path(gpuckpt.__file__).parent.parent)}
        arguments = ("--log", str(log), "--device", device)
        with Runner().start(Command((*program, *arguments), env=env)) as child:
            job = cls(tools, child, log, interrupts)
            try:
                yield job
            finally:
                job._make_end()

    @property
    def ticks(self) -> int:
        """How far the job has counted."""
        if not self._log.exists():
            return 0
        _, ticks = demo_job.read_log(self._log)
        return ticks[-1][0] if ticks else 0

    def count_to(self, tick: int, patience: float) -> None:
        """Wait until the job has counted to `tick`.

        Raises:
            ToolFailed: it ended, or did not get there within `patience` seconds.
        """
        ends = time.monotonic() + patience
        while self.ticks < tick:
            self._interrupts.check()
            if self._ref() is None or time.monotonic() > ends:
                raise ToolFailed(
                    f"the trial's job did not count to {tick} within {patience:g} s",
                    argv=self._child.command.argv,
                )
            time.sleep(POLL_SECONDS)

    def must_be_gone(self) -> None:
        """Check that nothing of the job is left: no process, no bytes on a GPU.

        Raises:
            DumpFailed: something is.
        """
        self._gone = True
        # settles the Popen object now: later its number means the restored job
        self._child.poll()
        if self._tools.proc.taken([self.pid]) or self._tools.nvidia.uses([self.pid]):
            raise DumpFailed(f"pid {self.pid} is still there after its dump")

    def end(self) -> int:
        """End the job politely and return how far it counted.

        Raises:
            VerificationFailed: its log shows that it lost its place.
            RestoreFailed: it did not end.
        """
        ref = self._ref()
        self._tools.proc.signal(self.pid, signal.SIGTERM)
        if ref is not None and wait_gone(self._tools, [ref], END_SECONDS):
            raise RestoreFailed(f"the restored job, pid {self.pid}, does not end when asked to")
        faults = demo_job.faults(self._log)
        if faults:
            raise VerificationFailed(f"the job came back and lost its place: {faults[0]}")
        return self.ticks

    def _ref(self) -> ProcessRef | None:
        """The job's process as it is now: only a child of ours can be it."""
        found = self._tools.proc.process(self.pid)
        mine = found is not None and found.ppid == os.getpid() and not found.zombie
        return found.ref if found is not None and mine else None

    def _make_end(self) -> None:
        ref = self._ref()
        if ref is not None:
            end_restored(self._tools, [ref], [self.pid])
        if not self._gone:
            self._child.poll()
