"""status: what is at work, and what was left by what no longer is. Read only.

The journal says what gpuckpt itself has done; the driver says of every other process whether
somebody has suspended it. A process that is stopped is never asked about: the driver would wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import DriverUnfit
from gpuckpt.flow.gpu.tree import AWAY
from gpuckpt.flow.leftovers.found import ask, cut_short, left_of, parked, suspension
from gpuckpt.flow.leftovers.recover import concerns, helpers_at_work
from gpuckpt.flow.work.history import History, command
from gpuckpt.flow.work.journal import NEVER_TAKEN, Journal, noun
from gpuckpt.flow.work.tasks import ask_each, check_target
from gpuckpt.flow.work.workspace import check_readable, kept_logs, run_folders
from gpuckpt.model import CudaState, warning
from gpuckpt.tools.cuda_wire import HELPER
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding, Process, Tree

_STATES = {"T": "stopped", "t": "held by a tracer", "Z": "ended", "D": "waiting for the kernel"}


class Unfinished(Value, frozen=True):
    """An operation that was cut short, and what is left of it."""

    entry: Entry
    left: tuple[Finding, ...]


class Member(Value, frozen=True):
    """One process of a job: how the kernel and the driver see it."""

    process: Process
    state: str
    cuda: CudaState


class StatusResult(Value, frozen=True):
    """All there is to tell; `returning`: helpers of a gpuckpt that died are still at work.

    `strangers` are processes that somebody else has suspended, `files` what `gpuckpt gc` removes
    or what nobody can read, `tables` packet filter tables that a CRIU has made. `last` is what was
    last done to a job of the same command line.
    """

    at_work: tuple[Entry, ...]
    unfinished: tuple[Unfinished, ...]
    strangers: tuple[Finding, ...]
    files: tuple[Finding, ...]
    tables: tuple[str, ...]
    logs: tuple[Path, ...]
    returning: bool
    job: tuple[Member, ...] = ()
    last: str = ""

    @property
    def needs_repair(self) -> bool:
        """Whether `gpuckpt repair` has something to do."""
        return bool(self.unfinished or self.strangers)


def status(tools: Toolbox, pid: int | None = None) -> StatusResult:
    """Look at what is at work and what was left; with a pid at its tree alone.

    Raises:
        NoSuchProcess, Forbidden: the pid names nothing that is a job.
        NotPrivileged: this user may not look into the processes, or the state directory.
    """
    check_readable(tools.state_dir)
    journal = Journal(tools.state_dir)
    runs = run_folders(tools.state_dir)  # first: an entry is always older than its folder
    ids, entries = journal.ids(), journal.entries()
    known = {ref.pid for entry in entries for ref in entry.processes}
    tree = None if pid is None else _tree(tools, pid, entries)
    wanted = {0 if pid is None else pid, *(tree.pids if tree else ())}
    mine = [one for one in entries if pid is None or concerns(one, wanted, "")]
    dead = [entry for entry in mine if cut_short(tools, entry)]
    job = _members(tools, tree, entries) if tree else ()
    return StatusResult(
        at_work=tuple(entry for entry in mine if entry not in dead),
        unfinished=tuple(Unfinished(entry, left_of(tools, entry)) for entry in dead),
        strangers=_everywhere(tools, known) if pid is None else _strangers(job, known),
        files=(*_strange(journal), *_forgotten(runs, ids)) if pid is None else (),
        tables=tools.net.tables() if pid is None else (),
        logs=kept_logs(tools.state_dir) if pid is None else (),
        returning=bool(dead) and helpers_at_work(tools),
        job=job,
        last=_last(tools, tree.root) if tree else "",
    )


def _tree(tools: Toolbox, pid: int, entries: Collection[Entry]) -> Tree | None:
    """Return the tree of a process; None if it is gone, and the journal knows of it all the same.

    Raises:
        NoSuchProcess, Forbidden: as told above.
    """
    if tools.proc.process(pid) is None and any(concerns(one, {pid}, "") for one in entries):
        return None
    check_target(tools, pid)
    return tools.proc.tree(pid)


def _last(tools: Toolbox, root: Process) -> str:
    name = command(root.argv, root.comm)
    found = [one for one in History(tools.state_dir).records() if one.command == name]
    newest = max(found, key=lambda one: one.started, default=None)
    return f"{noun(newest.operation)} of {newest.started}: {newest.outcome}" if newest else ""


def _members(tools: Toolbox, tree: Tree, entries: Collection[Entry]) -> tuple[Member, ...]:
    askable = [one.pid for one in tree.processes if not (one.stopped or one.ended)]
    states = ask(tools, ask_each(tools, tools.proc.cuda_candidates, askable))
    frozen = {task.process.pid: task.frozen for task in tools.proc.look(tree).tasks}
    quiet = {one.pid for one in tools.ranks.look(tree.pids) if one.quiet}
    found = []
    for process in tree.processes:
        state = _STATES.get(process.state, "runs")
        if any(parked(process, entry) for entry in entries):
            state = "parked by gpuckpt"
        elif process.pid in quiet:
            state = "stands at a step"
        elif frozen.get(process.pid):
            state = f"frozen by {frozen[process.pid]}"
        found.append(Member(process, state, states.get(process.pid, CudaState.NONE)))
    return tuple(found)


def _strangers(job: tuple[Member, ...], known: Collection[int]) -> tuple[Finding, ...]:
    return tuple(
        _suspended(one.process, one.cuda)
        for one in job
        if one.cuda in AWAY and one.process.pid not in known
    )


def _everywhere(tools: Toolbox, known: Collection[int]) -> tuple[Finding, ...]:
    """Look for suspended processes on the whole host, those of our own entries left out."""
    try:
        if tools.cuda.describe().kind == "none":
            return ()
    except DriverUnfit:
        return ()
    processes = {}
    for pid in tools.proc.pids():
        process = tools.proc.process(pid)
        if process is None or pid in known or HELPER in process.argv:
            continue
        if process.stopped or process.ended:
            continue
        processes[pid] = process
    states = ask(tools, ask_each(tools, tools.proc.cuda_candidates, processes))
    return tuple(_suspended(processes[pid], states[pid]) for pid in states if states[pid] in AWAY)


def _suspended(process: Process, state: CudaState) -> Finding:
    remedy = (
        f"Somebody else's tool did that: let it finish, or `gpuckpt repair {process.pid}` brings "
        "the process back."
    )
    return suspension(process.pid, state, process.command, remedy)


def _strange(journal: Journal) -> Iterator[Finding]:
    for one in journal.strange():
        yield warning(
            "journal-entry",
            str(one.path),
            f"It cannot be acted on: {one.why}.",
            "`gpuckpt repair` or `gpuckpt gc` removes it."
            if one.why == NEVER_TAKEN
            else "See that no job is stopped or locked, then remove the file.",
        )


def _forgotten(runs: tuple[Path, ...], ids: Collection[str]) -> Iterator[Finding]:
    for folder in runs:
        if folder.name not in ids:
            reason = "It is the work folder of a run that the journal no longer knows."
            yield warning("run-folder", str(folder), reason, "`gpuckpt gc` removes it.")
