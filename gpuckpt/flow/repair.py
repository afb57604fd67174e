"""repair: put back what runs that were cut short have left, or say why it cannot be.

Written down itself, so that nobody else works on the same processes meanwhile; safe to be run
again, and to be stopped between two steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.gpu.tree import AWAY, CudaTree, states_of
from gpuckpt.flow.leftovers.found import cut_short, left_of, suspension
from gpuckpt.flow.leftovers.mending import Deed, Mender
from gpuckpt.flow.leftovers.recover import concerns
from gpuckpt.flow.work.journal import at_work
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.quiescing import go_on, standing
from gpuckpt.flow.work.tasks import check_target
from gpuckpt.flow.work.workspace import check_readable
from gpuckpt.model import CudaState, GpuUse, blocker
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding, Tree


class RepairRequest(Value, frozen=True):
    """What to repair: everything, or what concerns one process's tree; or only what would be."""

    pid: int | None = None
    dry_run: bool = False


class RepairResult(Value, frozen=True):
    """What was put right, or would be, and what is left."""

    done: tuple[Deed, ...]
    left: tuple[Finding, ...]
    dry_run: bool = False


def repair(
    tools: Toolbox, request: RepairRequest, reporter: Reporter, interrupts: Interrupts
) -> RepairResult:
    """Put right what the journal tells of, and with a pid what somebody else has suspended there.

    Raises:
        NoSuchProcess, Forbidden: the pid names nothing that may be touched.
        NotPrivileged: this user may not look into the state directory.
        ProcessUnfit: another gpuckpt is at work on it.
        Interrupted: stopped between two steps; what was done stays done.
    """
    check_readable(tools.state_dir)
    operation = Operation.begin("repair", tools, reporter, interrupts)
    done: list[Deed] = []
    left: list[Finding] = []
    for entry in _entries(operation, request.pid):
        interrupts.check()
        if request.dry_run:
            done += (_would(one) for one in left_of(tools, entry) if one.id != "stopped")
            done.append(Deed(f"forget the {entry.title}"))
            continue
        with operation.record.phase("repair", entry.title):
            deeds, failed = _mend(operation, entry)
        done += deeds
        left += failed
    if request.pid is not None and not done and not left:
        deeds, failed = _strangers(operation, request.pid, dry_run=request.dry_run)
        done += deeds
        left += failed
    return RepairResult(tuple(done), tuple(left), request.dry_run)


def _would(one: Finding) -> Deed:
    """Return what a repair would do about one thing that is left."""
    verb = "put back" if one.blocks else "remove"
    if one.id == "left-half-restored":
        verb = "end"
    elif one.id == "left-huge-pages":
        verb = "put back"
    return Deed(
        f"{verb} {one.object}: {one.reason[:1].lower()}{one.reason[1:].rstrip('.')}", one.pid
    )


def _entries(operation: Operation, pid: int | None) -> list[Entry]:
    """Return the entries to be mended; with a pid those about its tree or its image's pids."""
    tools = operation.tools
    pids: set[int] = set()
    if pid is not None:
        pids = {pid}
        if tools.proc.process(pid) is not None:
            pids |= set(tools.proc.tree(pid).pids)
    return [
        entry
        for entry in operation.journal.entries()
        if cut_short(tools, entry) and (pid is None or concerns(entry, pids, ""))
    ]


def _mend(operation: Operation, entry: Entry) -> tuple[list[Deed], list[Finding]]:
    """Mend one entry under one of our own, so that nobody else does."""
    mender = Mender(operation.tools, operation.journal, operation.interrupts, entry)

    def work() -> None:
        if entry.id not in operation.journal.ids():
            return  # another repair was quicker
        mender.mend()
        told = {one.pid for one in mender.failed}
        rest = (one for one in _after(operation, entry) if one.blocks and one.pid not in told)
        mender.failed += rest
        if not mender.failed:
            mender.deeds.append(Deed(f"the {entry.title} is forgotten"))

    root = min((ref.pid for ref in entry.processes), default=0)
    mine = operation.enter(root, entry.image, entry.processes, pids=entry.pids)
    _closing(operation, mine, work)
    return mender.deeds, mender.failed


def _after(operation: Operation, entry: Entry) -> tuple[Finding, ...]:
    """Return what is still left of an entry that could not be closed."""
    open_ones = {one.id for one in operation.journal.entries()}
    return left_of(operation.tools, entry) if entry.id in open_ones else ()


def _closing(operation: Operation, mine: Entry, work: Callable[[], None]) -> None:
    try:
        work()
    finally:
        operation.journal.close(mine)


def _strangers(
    operation: Operation, pid: int, *, dry_run: bool
) -> tuple[list[Deed], list[Finding]]:
    """Bring back what somebody else's tool has suspended in the tree that was named.

    Raises:
        ProcessUnfit: a living gpuckpt is at work there.
    """
    tools = operation.tools
    check_target(tools, pid)
    tree = tools.proc.tree(pid)
    _refuse_busy(operation, tree)
    states = states_of(tools, tree.pids)
    away = {one: state for one, state in states.items() if state in AWAY}
    commands = {process.pid: process.command for process in tree.processes}
    lost = [
        suspension(one, state, commands[one], "")
        for one, state in away.items()
        if state is CudaState.FAILED
    ]
    back = sorted(one for one, state in away.items() if state is not CudaState.FAILED)
    quiet = [one.pid for one in standing(tools, tree.pids)]
    if dry_run or not (back or quiet):
        deeds = [Deed(f"bring back from {away[one]}", one) for one in back]
        return [*deeds, *(Deed("let it go on from its step", one) for one in quiet)], lost
    deeds, stuck = _lead_back(operation, tree, {one: away[one] for one in back}, quiet)
    return deeds, [*lost, *stuck]


def _lead_back(
    operation: Operation, tree: Tree, away: dict[int, CudaState], quiet: list[int]
) -> tuple[list[Deed], list[Finding]]:
    """Give those that are away their CUDA state back, then let all go on that stand at a step."""
    first = dict.fromkeys(away, CudaState.RUNNING)
    mine = operation.enter(tree.root.pid, "", [one.ref for one in tree.processes], first)
    stuck: list[Finding] = []

    def work() -> None:
        if away:
            _bring_back(operation, first)
        if quiet:
            stuck.extend(go_on(operation.tools, tree.pids))

    try:
        _closing(operation, mine, work)
    except GpuckptError as why:
        one = next(process for process in tree.processes if process.pid in {*away, *quiet})
        reason = f"It could not be brought back: {why}."
        return [], [blocker("not-repaired", one.command, reason, why.hint, one.pid)]
    pids = {one.pid for one in stuck}
    done = [Deed(f"its CUDA state was {state} and is running", one) for one, state in away.items()]
    gone_on = (one for one in quiet if one not in pids)
    return [*done, *(Deed("it stood at a step and goes on", one) for one in gone_on)], stuck


def _bring_back(operation: Operation, first: dict[int, CudaState]) -> None:
    try:
        cuda = CudaTree(operation.tools, operation.interrupts, first)
        cuda.expect(_most(operation.tools, first))
        cuda.open()
        cuda.bring_back()
    finally:
        operation.tools.cuda.close()


def _most(tools: Toolbox, pids: Iterable[int]) -> Iterator[GpuUse]:
    """Say what the processes need at most: nobody recorded it, but it lies in their own memory.

    On which GPU it was nobody knows either; at least one must have the room.
    """
    facts = tools.nvidia.facts()
    if facts is None or not facts.gpus:
        return
    freest = max(facts.gpus, key=lambda gpu: gpu.memory_free)
    for pid in pids:
        process = tools.proc.process(pid)
        if process is not None:
            yield GpuUse(pid, freest.uuid, min(process.rss, freest.memory_total))


def _refuse_busy(operation: Operation, tree: Tree) -> None:
    for entry in operation.journal.entries():
        if concerns(entry, tree.pids, "") and not cut_short(operation.tools, entry):
            raise at_work(entry, tree.root.pid)
