"""The look at a restored tree: the very processes, alive, with their GPU state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuckpt.errors import Stopped
from gpuckpt.model import blocker

if TYPE_CHECKING:
    from gpuckpt.flow.interrupts import Interrupts
    from gpuckpt.flow.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest, ProcessRecord
    from gpuckpt.model import Finding, Process

# NVML's figure for a process moves by the driver's own bookkeeping
GPU_TOLERANCE = 0.9
PROBE_PAUSE = 0.5


class Proof:
    """The verification pass over one restored tree; every method returns what is wrong."""

    def __init__(self, tools: Toolbox, manifest: Manifest, interrupts: Interrupts) -> None:
        """Take what was recorded as the truth to compare with."""
        self._tools = tools
        self._manifest = manifest
        self._interrupts = interrupts

    def exact(self) -> list[Finding]:
        """Compare every process while all stand stopped: pid, executable, threads."""
        wrong: list[Finding] = []
        for record in self._manifest.tree:
            wrong += _compare(record, self._tools.proc.process(record.pid))
        return wrong

    def look(self) -> list[Finding]:
        """Look at the running tree: those that matter alive, GPU state as it was.

        A plain child may have come to its end in the meantime, as it would have without us.
        """
        wrong: list[Finding] = []
        for record in self._manifest.tree:
            if record.pid in self._manifest.cuda or record.pid == self._manifest.root_pid:
                wrong += _alive(record.pid, self._tools.proc.process(record.pid))
        return wrong or self._gpu()

    def settle(self, seconds: float) -> list[Finding]:
        """Wait, then look again: many a restored process dies in its first second."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._interrupts.check()
            time.sleep(min(0.1, max(0.0, ends - time.monotonic())))
        return self.look()

    def probe(self, command: str, timeout: float) -> list[Finding]:
        """Run the user's command until it succeeds or its time is up."""
        ends = time.monotonic() + timeout
        while True:
            self._interrupts.check()
            left = max(1.0, ends - time.monotonic())
            try:
                answer = self._tools.shell.run(command, left, self._interrupts.fd)
            except Stopped:
                self._interrupts.check()
                raise
            if not answer:
                return []
            if time.monotonic() >= ends:
                return [_wrong("probe", command, f"the probe did not succeed: {answer}")]
            time.sleep(PROBE_PAUSE)

    def _gpu(self) -> list[Finding]:
        cuda = self._manifest.cuda
        if not cuda:
            return []
        wrong = []
        for pid, state in self._tools.cuda.states(sorted(cuda)).items():
            if state is not cuda[pid]:
                reason = f"the driver says {state} of process {pid}, it was {cuda[pid]}"
                wrong.append(_wrong("gpu-state", f"pid {pid}", reason, pid))
        recorded = self._manifest.nvidia.uses if self._manifest.nvidia else ()
        now = self._tools.nvidia.uses(sorted(cuda))
        for pid in sorted(cuda):
            had = sum(use.bytes for use in recorded if use.pid == pid)
            has = sum(use.bytes for use in now if use.pid == pid)
            if has and has < had * GPU_TOLERANCE:
                reason = f"process {pid} holds {has >> 20} MiB of GPU memory, it held {had >> 20}"
                wrong.append(_wrong("gpu-memory", f"pid {pid}", reason, pid))
        return wrong


def _compare(record: ProcessRecord, process: Process | None) -> list[Finding]:
    """Compare one process with what was recorded of it."""
    name = f"pid {record.pid}"
    if process is None:
        reason = f"process {record.pid} was not restored"
        return [_wrong("process-gone", name, reason, record.pid)]
    wrong = []
    if process.exe != record.exe:
        reason = f"process {record.pid} runs {process.exe}, it ran {record.exe}"
        wrong.append(_wrong("process-exe", name, reason, record.pid))
    if set(record.threads) != set(process.threads):
        reason = f"process {record.pid} has {len(process.threads)} threads, not the recorded ones"
        wrong.append(_wrong("process-threads", name, reason, record.pid))
    return wrong


def _alive(pid: int, process: Process | None) -> list[Finding]:
    if process is None or process.zombie:
        return [_wrong("process-ended", f"pid {pid}", f"process {pid} has ended", pid)]
    if process.state in {"T", "t"}:
        return [_wrong("process-stopped", f"pid {pid}", f"process {pid} is stopped", pid)]
    return []


def _wrong(id_: str, what: str, reason: str, pid: int | None = None) -> Finding:
    remedy = "Look at the job's own output; the image is intact and can be restored again."
    return blocker(id_, what, reason, remedy, pid)
