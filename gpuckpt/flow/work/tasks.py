"""Waiting for processes to be gone, and ending those that a failed restore left."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

from gpuckpt.errors import (
    Bug,
    Forbidden,
    GpuckptError,
    NoSuchProcess,
    NotPrivileged,
    ProcessUnfit,
)
from gpuckpt.flow.work.kin import roots_below
from gpuckpt.model import CudaState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Process, ProcessRef

_T = TypeVar("_T")
FIRST_POLL_SECONDS, POLL_SECONDS = 0.001, 0.05
ZOMBIE_SECONDS = 2.0
END_SECONDS = 30.0


def check_target(tools: Toolbox, pid: int) -> Process:
    """Return the process to be dumped; refuse what must never be touched.

    Raises:
        NoSuchProcess: there is none, or only a zombie.
        Forbidden: pid 1, a kernel thread, or gpuckpt itself or one of its ancestors.
    """
    process = tools.proc.process(pid)
    if process is None:
        raise NoSuchProcess(f"there is no process {pid}", hint="`gpuckpt jobs` lists GPU jobs.")
    if process.zombie:
        raise NoSuchProcess(
            f"process {pid} has ended; its parent, process {process.ppid}, has not waited for it"
        )
    if pid == 1:
        raise Forbidden("process 1 is the init of this host or container")
    if process.kernel_thread:
        raise Forbidden(f"process {pid} [{process.comm}] is a thread of the kernel")
    me = os.getpid()
    if pid == me or pid in tools.proc.ancestors(me):
        raise Forbidden(
            f"process {pid} ({process.comm}) runs this very gpuckpt",
            hint=_instead(tools, pid),
        )
    return process


def _instead(tools: Toolbox, pid: int) -> str:
    """Say what to dump in place of a process that stands above this very gpuckpt."""
    me = os.getpid()
    ours = {me, *tools.proc.ancestors(me)}
    group = os.getpgrp()  # a pipeline's other programs are no jobs
    tree = tools.proc.tree(pid).processes
    below = roots_below(one for one in tree if one.pid not in ours and one.pgid != group)
    if not below:
        return "Run gpuckpt from outside the job's tree."
    return f"Dump one of the jobs below it: process {', '.join(map(str, below[:8]))}."


def ask_each(
    tools: Toolbox, ask: Callable[[list[int]], Iterable[_T]], pids: Iterable[int]
) -> Iterator[_T]:
    """Ask /proc about processes one by one, so that one that is closed to us hides no other.

    Raises:
        NotPrivileged: one may not be looked into, and this is not root.
    """
    for pid in pids:
        try:
            yield from ask([pid])
        except NotPrivileged:
            # not even root sees the files of some (seen: pid 1 of a Firecracker machine)
            if tools.host.facts().euid != 0:
                raise


def myself(tools: Toolbox) -> ProcessRef:
    """Return the identity of the running gpuckpt."""
    process = tools.proc.process(os.getpid())
    if process is None:
        raise Bug("gpuckpt does not find itself in /proc")
    return process.ref


def still_there(tools: Toolbox, refs: Iterable[ProcessRef]) -> list[Process]:
    """Return those processes that have not gone, zombies included."""
    found = []
    for ref in refs:
        process = tools.proc.process(ref.pid)
        if process is not None and process.ref == ref:
            found.append(process)
    return found


def wait_gone(tools: Toolbox, refs: Iterable[ProcessRef], seconds: float) -> list[Process]:
    """Wait until all are gone, zombies too; return those that are left after `seconds`.

    A zombie whose parent lives and does not wait for it is not worth more than a moment: only
    init, or we ourselves, are sure to.
    """
    left = list(refs)
    now = time.monotonic()
    ends, moment = now + seconds, now + min(seconds, ZOMBIE_SECONDS)
    pause = FIRST_POLL_SECONDS  # a parent that waits does so at once
    while True:
        tools.proc.reap([ref.pid for ref in left])
        found = still_there(tools, left)
        neglected = all(
            process.zombie and process.ppid not in {1, os.getpid()} for process in found
        )
        if not found or time.monotonic() >= (moment if neglected else ends):
            return found
        left = [process.ref for process in found]
        time.sleep(pause)
        pause = min(2 * pause, POLL_SECONDS)


def below_me(tools: Toolbox, pids: Iterable[int]) -> tuple[ProcessRef, ...]:
    """Return who has these pids and is below this process: others may have got one by now."""
    me = os.getpid()
    found = (tools.proc.process(pid) for pid in pids if me in tools.proc.ancestors(pid))
    return tuple(process.ref for process in found if process is not None)


def inhabitants(tools: Toolbox, init: ProcessRef) -> tuple[ProcessRef, ...]:
    """Return the process 1 of a namespace and what is below it; nothing if it has ended."""
    now = tools.proc.process(init.pid)
    if now is None or now.ref != init:
        return ()
    return tuple(one.ref for one in tools.proc.tree(init.pid).processes)


def end_restored(tools: Toolbox, refs: Iterable[ProcessRef], cuda: Iterable[int]) -> None:
    """End the processes of a restore that failed, and wait until nothing is left of them.

    Ending a live restored CUDA process once hung a host (driver 595.71), and suspending it first
    avoided that: so every CUDA state is taken away before the first signal.

    Raises:
        ProcessUnfit: some are still there after a bounded time.
    """
    made = list(refs)
    alive = [ref for ref in made if tools.proc.alive(ref)]
    _suspend(tools, [pid for pid in cuda if any(ref.pid == pid for ref in alive)])
    for ref in alive:
        tools.proc.kill(ref)
    left = wait_gone(tools, made, END_SECONDS)
    if left:
        names = ", ".join(f"{process.pid} (state {process.state})" for process in left)
        raise ProcessUnfit(f"could not be ended: process {names}")


def _suspend(tools: Toolbox, pids: list[int]) -> None:
    """Lock and checkpoint whatever runs; a process that refuses is ended all the same."""
    if not pids:
        return
    try:
        states = tools.cuda.states(pids)
        running = [pid for pid, state in states.items() if state is CudaState.RUNNING]
        if running:
            tools.cuda.lock(running, 10.0)
        live = [pid for pid, s in states.items() if s in {CudaState.RUNNING, CudaState.LOCKED}]
        if live:
            tools.cuda.checkpoint(live)
    except GpuckptError:
        return
