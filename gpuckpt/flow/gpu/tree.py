"""The driver's part of an operation: taking a tree's CUDA state away and giving it back.

Every step asks for states first and goes on from what it finds, so that it may be run again after
any failure. What a process had been when we came is what it is brought back to.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from gpuckpt.errors import (
    CudaCallFailed,
    GpuMemoryShort,
    GpuStepFailed,
)
from gpuckpt.flow.gpu.memory import MemoryWait, free_of, freed, memory_need
from gpuckpt.flow.gpu.refusals import hopeless, lost, missing_access, translated
from gpuckpt.flow.gpu.rounds import Rounds
from gpuckpt.model import CudaState, GpuUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Tree

# where a process is whose job cannot use the GPU
AWAY = frozenset({CudaState.LOCKED, CudaState.CHECKPOINTED, CudaState.FAILED})

States = dict[int, CudaState]


def states_of(tools: Toolbox, pids: Iterable[int]) -> States:
    """Ask the driver about those processes that may have CUDA in them.

    Raises:
        GpuStepFailed: the driver gave no answer.
    """
    # the driver cannot ask a process that is stopped; it would wait for ever
    candidates = [
        pid
        for pid in tools.proc.cuda_candidates(pids)
        if (process := tools.proc.process(pid)) and not process.stopped
    ]
    if not candidates:
        return {}
    try:
        found = tools.cuda.states(candidates)
    except CudaCallFailed as why:
        raise translated(why, partial(missing_access, tools)) from why
    return {pid: state for pid, state in found.items() if state is not CudaState.NONE}


class CudaTree:
    """The CUDA processes of one tree in one operation."""

    def __init__(
        self,
        tools: Toolbox,
        interrupts: Interrupts,
        first: Mapping[int, CudaState],
        threads: Mapping[int, int] | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Remember in which state each process was `first`.

        `threads` are the restore threads of processes that are parked; `note` is told of a wait.
        `part`, which may be set, times what is done by its name.
        """
        self.part: Callable[[str], AbstractContextManager[object]] = nullcontext
        self.first: States = dict(first)
        self.threads = dict(threads or {})
        self._tools = tools
        self._interrupts = interrupts
        self._waiting = MemoryWait(tools, note)
        self._uses: tuple[GpuUse, ...] = ()
        self._lost: set[int] = set()
        self._freed: dict[str, int] = {}

    @property
    def pids(self) -> list[int]:
        """The pids of all CUDA processes known so far."""
        return sorted(self.first)

    @property
    def bytes(self) -> int:
        """How many bytes the processes hold on all GPUs together."""
        return sum(use.bytes for use in self._uses)

    @property
    def uses(self) -> tuple[GpuUse, ...]:
        """Who held how much on which GPU when it was checkpointed."""
        return self._uses

    def open(self) -> None:
        """Get the driver's helpers ready, armed to bring all back if this program dies.

        Raises:
            GpuStepFailed: a helper could not be made ready; nothing was touched.
        """
        self._open(self.first)

    def lock(
        self,
        timeout: float,
        relist: Callable[[], Tree],
        joined: Callable[[Tree], None] = lambda _: None,
    ) -> int:
        """Lock every CUDA process, newcomers included; return how many rounds it took.

        `joined` is told of a tree in which there are newcomers, before these are locked.

        Raises:
            GpuLockTimeout: one could not be held within `timeout` seconds in all.
            GpuStepFailed: the driver refused for another reason.
            Interrupted: a signal came between two rounds.
        """
        rounds = Rounds(timeout)
        while True:
            patience = rounds.begin(self.pids)
            held = True
            try:
                if self.pids:
                    self._tools.cuda.lock(self.pids, patience)
            except CudaCallFailed as why:
                held = False
                self._after_failed_lock(why, rounds)
            if fresh := self._newcomers(tree := relist()):
                joined(tree)
                if rounds.over:
                    raise rounds.given_up(fresh)
            elif held:
                return rounds.count

    def measure(self) -> tuple[GpuUse, ...]:
        """Return, and remember, how much every process holds on each GPU."""
        self._uses = self._tools.nvidia.uses(self.pids)
        return self._uses

    def checkpoint(self) -> None:
        """Move the GPU bytes of every locked process, as measured, into its own memory.

        Raises:
            GpuStepFailed: the driver refused one of them.
        """
        if not self.pids:
            return
        # where NVML does not tell the job's share, what becomes free is what it will need again
        told = {use.pid for use in self._uses if use.bytes}
        before = {} if told.issuperset(self.pids) else free_of(self._tools)
        try:
            self._tools.cuda.checkpoint(self.pids)
        except CudaCallFailed as why:
            raise self._translated(why) from why
        self._freed = freed(self._tools, before) if before else {}

    def turn(self) -> None:
        """Give every checkpointed process its GPU memory back and take it again, locked throughout.

        Raises:
            GpuStepFailed: the driver refused one of them, on the way back or out.
        """
        if refused := self._restore(self.pids, None):
            raise self._translated(refused) from refused
        self.checkpoint()

    def bring_back(self, gpu_map: Mapping[str, str] | None = None) -> None:
        """Bring every process that still lives to the state it was in first.

        Raises:
            GpuStepFailed: one could not be brought back; says which and why.
        """
        if not self.pids:
            return
        mapped = bool(gpu_map)
        now, silent = self._now()
        if silent and gpu_map is not None:  # a job just restored, which is ended as a whole
            raise self._translated(silent, mapped=mapped) from silent
        away = [
            pid
            for pid, state in now.items()
            if state is CudaState.CHECKPOINTED and self.first[pid] is not CudaState.CHECKPOINTED
            if pid not in self._lost
        ]
        back = {pid: state for pid, state in now.items() if pid not in away}
        refused: CudaCallFailed | None = None
        short: GpuMemoryShort | None = None
        try:
            with self.part("restore"):
                refused = self._restore(away, gpu_map) if away else None
        except GpuMemoryShort as why:  # they stay suspended; those that are only locked need not
            short = why
        else:
            back |= dict.fromkeys(away, CudaState.LOCKED)
        if refused and gpu_map is not None:
            raise self._translated(refused, mapped=mapped) from refused
        if refused:
            back |= {one.pid: one.after or CudaState.NONE for one in refused.failed}
        with self.part("unlock"):
            stuck = self._unlock(back)
        if short:
            raise short
        if wrong := refused or stuck or silent:
            raise self._translated(wrong, mapped=mapped) from wrong
        failed = {pid for pid, state in now.items() if state is CudaState.FAILED}
        if gone := sorted(failed | self._lost):
            raise lost(gone)

    def _now(self) -> tuple[States, CudaCallFailed | None]:
        """Ask for all states; one process that gives no answer does not keep the others."""
        try:
            return self._tools.cuda.states(self.pids), None
        except CudaCallFailed as why:
            return {one.pid: one.after for one in why.outcomes if one.ok and one.after}, why

    def _restore(self, pids: list[int], gpu_map: Mapping[str, str] | None) -> CudaCallFailed | None:
        """Restore processes; return what was refused: the others need not suffer for it."""
        self._wait_for_memory(pids, gpu_map)
        try:
            self._tools.cuda.restore(pids, gpu_map or {})
        except CudaCallFailed as why:
            self._lost |= set() if gpu_map else hopeless(why)
            return why
        return None

    def _unlock(self, states: States) -> CudaCallFailed | None:
        """Let go on what was found running and is locked; return what was refused."""
        locked = [
            pid
            for pid, state in states.items()
            if state is CudaState.LOCKED and self.first[pid] is CudaState.RUNNING
        ]
        try:
            if locked:
                self._tools.cuda.unlock(locked)
        except CudaCallFailed as why:
            return why
        return None

    def _translated(self, why: CudaCallFailed, *, mapped: bool = False) -> GpuStepFailed:
        return translated(why, partial(missing_access, self._tools), mapped=mapped)

    def _after_failed_lock(self, why: CudaCallFailed, rounds: Rounds) -> None:
        """Let go of those that were locked, and decide whether another round makes sense."""
        if not why.timed_out:
            raise self._translated(why) from why
        rounds.missed(why)
        self.bring_back()
        self._interrupts.check()
        if rounds.over:
            raise rounds.given_up() from why
        rounds.rest()

    def _newcomers(self, tree: Tree) -> States:
        """Take up processes that have started CUDA since we looked, and return these."""
        found = states_of(self._tools, tree.pids)
        fresh = {pid: state for pid, state in found.items() if pid not in self.first}
        self._open(fresh)
        self.first |= fresh
        return fresh

    def _open(self, first: States) -> None:
        if not first:
            return
        known = {pid: tid for pid, tid in self.threads.items() if pid in first}
        try:
            self.threads |= self._tools.cuda.open(first, known)
        except CudaCallFailed as why:
            raise self._translated(why) from why

    def _wait_for_memory(self, pids: list[int], gpu_map: Mapping[str, str] | None) -> None:
        """Wait until each GPU has the room that the processes need."""
        # NVML may list a process without saying how much it holds: that is no reason to wait
        held = [use for use in self._uses if use.pid in pids and use.bytes]
        all_ = [GpuUse(pids[0], uuid, size) for uuid, size in self._freed.items() if size > 0]
        again = f"gpuckpt repair {pids[0]}" if gpu_map is None else "the same restore"
        self._waiting.until_free(memory_need(all_ or held, gpu_map or {}), pids, again)

    def expect(self, uses: Iterable[GpuUse]) -> None:
        """Say what the processes will need on each GPU, where nobody could ask them (restore)."""
        self._uses = tuple(uses)
