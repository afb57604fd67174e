"""The look at a restored tree: the very processes, alive, with their GPU state."""

from __future__ import annotations

import os
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import CudaCallFailed, NoSuchProcess, Stopped
from gpuckpt.flow.gpu.memory import shrunk
from gpuckpt.flow.returning import doubts
from gpuckpt.flow.returning.motion import Motion
from gpuckpt.flow.returning.probing import answered
from gpuckpt.flow.returning.telling import environment
from gpuckpt.image.identity import Identity
from gpuckpt.model import blocker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest, ProcessRecord
    from gpuckpt.location import Location
    from gpuckpt.model import CudaOutcome, Finding, GpuUse, Process, ProcessRef, Tree


class Proof:
    """The verification pass over one restored tree; every method returns what is wrong."""

    def __init__(
        self,
        tools: Toolbox,
        manifest: Manifest,
        interrupts: Interrupts,
        gpu_map: Mapping[str, str] = MappingProxyType({}),
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what was recorded as the truth to compare with.

        `gpu_map` says what is on another GPU; `moved` is told when the job was seen to move.
        """
        self._map = gpu_map
        self.identity = Identity()  # what else the job knows and is another here
        self._uses: tuple[GpuUse, ...] = ()
        self._tools = tools
        self._manifest = manifest
        self._interrupts = interrupts
        self._refs: dict[int, ProcessRef] = {}
        self.doubts: list[Finding] = []
        self._before: doubts.Moment | None = None
        self.motion = Motion(tools, tuple(one.pid for one in manifest.tree), moved)
        self.progress = ""

    def exact(self) -> list[Finding]:
        """Compare every process while all stand stopped: pid, executable, threads, layout."""
        wrong: list[Finding] = []
        for record in self._manifest.tree:
            process = self._tools.proc.process(record.pid)
            wrong += _compare(record, process)
            if process is not None:
                self._refs[record.pid] = process.ref
                wrong += _memory(record, self._tools.proc.surroundings(record.pid).layout)
        return wrong

    def look(self) -> list[Finding]:
        """Look at the running tree: those that matter alive, GPU state as it was."""
        return self._living() or self._gpu()

    def _living(self) -> list[Finding]:
        """Look at those that matter.

        A plain child may have come to its end in the meantime, as it would have without us.
        """
        wrong: list[Finding] = []
        for record in self._manifest.tree:
            if record.pid in self._manifest.cuda or record.pid == self._manifest.root_pid:
                process = self._tools.proc.process(record.pid)
                wrong += _alive(record.pid, process) or self._replaced(process)
        return [self._explained(one) for one in wrong]

    def settle(self, seconds: float) -> list[Finding]:
        """Look again `seconds` after it went on: many a restored process dies in its first second.

        What is not certainly wrong is left in `doubts`, whether the job has run in `progress`.
        """
        before = self._before or doubts.moment(self._tools, self._manifest)
        self.motion.look()
        self._watch(self.motion.begun + seconds)
        if wrong := self.look():
            return wrong
        after = doubts.moment(self._tools, self._manifest)
        self.progress = "ran" if self.motion.moved or doubts.ran(before, after) else "idle"
        try:
            tree = self._tools.proc.tree(self._manifest.root_pid)
        except NoSuchProcess:  # this very moment
            return self.look()
        try:
            self.doubts = self._doubts(tree, before, after)
        except OSError as why:  # a job that is back does not go again for want of a closer look
            self.doubts = [doubts.unseen(why)]
        return self._ports(tree)

    def _watch(self, until: float) -> None:
        """Let time pass, with an eye on whether the job moves."""
        while (left := until - time.monotonic()) > 0:
            self._interrupts.check()
            self.motion.wait(left)

    def fresh(self, told: list[Finding], *, stays: bool) -> list[Finding]:
        """Return what may be wrong and is not told yet; `stays`: its parent is ours."""
        known = {(one.id, one.object, one.pid) for one in told}
        doubts = [one for one in self.doubts if (one.id, one.object, one.pid) not in known]
        return [one for one in doubts if not (stays and one.id == "parent-does-not-wait")]

    def _doubts(self, tree: Tree, before: doubts.Moment, after: doubts.Moment) -> list[Finding]:
        tools, manifest = self._tools, self._manifest
        seen = tools.proc.look(tree)
        return [
            *doubts.frozen(manifest, before, after),
            *doubts.ended(manifest, after),
            *doubts.outputs(manifest, seen),
            *doubts.connections(manifest, seen),
            *doubts.elsewhere(manifest, self._map, self._uses),
            *doubts.clock(tools, manifest),
            *doubts.copies(tools, manifest, (*tree.pids, os.getpid())),
            *doubts.orphans(tools, before, after),
        ]

    def _ports(self, tree: Tree) -> list[Finding]:
        """What listened before must listen again, and be this tree."""
        wrong = []
        for one in self._manifest.outside.listeners:
            holders = self._tools.net.holders(one.protocol, one.port, listening=True)
            if not set(holders) & set(tree.pids):
                name = f"{one.protocol} {one.address}:{one.port}"
                reason = f"No process of the job listens on port {one.port} ({one.protocol}) now."
                wrong.append(_wrong("port-silent", name, reason))
        return wrong

    def _explained(self, wrong: Finding) -> Finding:
        """Say of a process that has ended what most likely ended it, if that is known."""
        for one in self._manifest.outside.pipes:
            if wrong.id == "process-ended" and one.pid == wrong.pid and one.writes:
                name = doubts.STANDARD.get(one.fd, f"descriptor {one.fd}")
                why = f" Its {name} was a pipe to {one.holder}, which nobody reads any more."
                return replace(wrong, reason=wrong.reason + why)
        return wrong

    def _replaced(self, process: Process | None) -> list[Finding]:
        """A pid that is another process's now proves nothing about the job."""
        if process is None or self._refs.get(process.pid, process.ref) == process.ref:
            return []
        reason = f"Process {process.pid} is another one than was restored: it started later."
        return [_wrong("process-replaced", f"pid {process.pid}", reason, process.pid)]

    def tell(self, image: Location, command: str, timeout: float) -> list[Finding]:
        """Run the user's command that tells others, or the job, of what has changed."""
        told = environment(image, self._manifest, self._map, self.identity)
        try:
            answer = self._tools.shell.run(command, timeout, self._interrupts.fd, told)
        except Stopped:
            self._interrupts.check()
            raise
        self.motion.look()
        return [_wrong("post-restore", command, f"It did not succeed: {answer}.")] if answer else []

    def probe(self, command: str, timeout: float) -> list[Finding]:
        """Run the user's command until it succeeds, its time is up, or the job has ended."""
        self._before = doubts.moment(self._tools, self._manifest)
        wrong: list[Finding] = []

        def rest(until: float) -> bool:
            self.motion.look()
            wrong.extend(self._living())
            if not wrong:
                self._watch(until)
            return not wrong

        answer = answered(self._tools.shell, self._interrupts, command, timeout, rest)
        self.motion.look()
        if answer:
            wrong.append(_wrong("probe", command, f"The probe did not succeed: {answer}."))
        return wrong

    def _gpu(self) -> list[Finding]:
        cuda = self._manifest.cuda
        if not cuda:
            return []
        wrong: list[Finding] = []
        try:
            states = self._tools.cuda.states(sorted(cuda))
        except CudaCallFailed as why:
            return [_untold(one) for one in why.failed]
        for pid, state in states.items():
            if state is not cuda[pid]:
                reason = f"The driver says {state} of process {pid}, it was {cuda[pid]}."
                wrong.append(_wrong("gpu-state", f"pid {pid}", reason, pid))
        recorded = self._manifest.nvidia.uses if self._manifest.nvidia else ()
        self._uses = self._tools.nvidia.uses(sorted(cuda))
        shrank = ((pid, shrunk(recorded, self._uses, pid)) for pid in sorted(cuda))
        wrong += (_wrong("gpu-memory-lost", f"pid {pid}", why, pid) for pid, why in shrank if why)
        return wrong


def _compare(record: ProcessRecord, process: Process | None) -> list[Finding]:
    """Compare one process with what was recorded of it."""
    name = f"pid {record.pid}"
    if process is None:
        reason = f"Process {record.pid} was not restored."
        return [_wrong("process-gone", name, reason, record.pid)]
    wrong = []
    if process.exe != record.exe:
        reason = f"Process {record.pid} runs {process.exe}, it ran {record.exe}."
        wrong.append(_wrong("process-exe", name, reason, record.pid))
    if set(record.threads) != set(process.threads):
        reason = f"Process {record.pid} has {len(process.threads)} threads, not the recorded ones."
        wrong.append(_wrong("process-threads", name, reason, record.pid))
    return wrong


def _memory(record: ProcessRecord, layout: tuple[int, ...]) -> list[Finding]:
    """The same program started afresh has its stack and its arguments somewhere else."""
    if not any(record.layout) or not any(layout) or record.layout == layout:
        return []
    reason = f"Process {record.pid} does not have the memory that was dumped."
    return [_wrong("process-memory", f"pid {record.pid}", reason, record.pid)]


def _untold(one: CudaOutcome) -> Finding:
    """A job that is back is not ended, or called a bug of ours, because the driver is silent."""
    reason = f"The driver does not tell the state of process {one.pid}: {one.text}."
    return _wrong("gpu-state", f"pid {one.pid}", reason, one.pid)


def _alive(pid: int, process: Process | None) -> list[Finding]:
    if process is None or process.zombie:
        return [_wrong("process-ended", f"pid {pid}", f"Process {pid} has ended.", pid)]
    if process.stopped:
        return [_wrong("process-stopped", f"pid {pid}", f"Process {pid} is stopped.", pid)]
    return []


def _wrong(id_: str, what: str, reason: str, pid: int | None = None) -> Finding:
    remedy = "Look at the job's own output; the image is intact and can be restored again."
    return blocker(id_, what, reason, remedy, pid)
