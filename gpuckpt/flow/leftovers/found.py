"""What an operation that was cut short has left behind: looked at, never touched.

One entry of the journal against the host as it is now. A blocker means that a process would have
to be touched to put it right, a warning that only files are left.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import CudaCallFailed, GpuckptError
from gpuckpt.flow.leftovers import sent
from gpuckpt.flow.leftovers.placed import REPAIR, SWEEP, LeftFiles, lasting, lasting_cuts, told
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.journal import Journal
from gpuckpt.flow.work.quiescing import standing
from gpuckpt.flow.work.tasks import inhabitants
from gpuckpt.flow.work.workspace import folder_of
from gpuckpt.model import CudaState, blocker, warning
from gpuckpt.tools.criu import DUMP_LOG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding, Process, ProcessRef
    from gpuckpt.tools.cooperation import Rank
    from gpuckpt.tools.files import Remap

# the steps of a restore from which on the job stands and only had to be looked at
STANDING = frozenset({"verify"})
# the steps of a dump from which on its CUDA processes may be parked
_PARKING = frozenset({"checkpoint", "stream", "commit"})


def cut_short(tools: Toolbox, entry: Entry) -> bool:
    """Whether nobody works on this entry any more."""
    return not same_boot(tools, entry) or not tools.proc.alive(entry.owner)


def same_boot(tools: Toolbox, entry: Entry) -> bool:
    """Whether the processes of this entry can still be there at all."""
    return entry.boot_id == tools.host.facts().boot_id


def left_of(tools: Toolbox, entry: Entry) -> tuple[Finding, ...]:
    """Return what is left of an operation whose owner is dead."""
    found: list[Finding] = []
    if same_boot(tools, entry):
        if entry.operation == "restore":
            found += (_half_restored(one) for one in made_tasks(tools, entry))
            found += _held(tools, entry)
        else:
            found += _suspended(tools, entry)
            found += _cut(tools, entry)
        found += (_quiet(one) for one in quiet_of(tools, entry))
    found += told(tools, files_of(tools, entry))
    found += (_remap(remap) for remap in remaps_of(tools, entry))
    found += _files(tools, entry)
    found += hugepages.left(tools, Journal(tools.state_dir), entry)
    return tuple(found)


def living(tools: Toolbox, entry: Entry) -> tuple[ProcessRef, ...]:
    """Return those of the entry's processes that are still there."""
    return tuple(ref for ref in entry.processes if tools.proc.alive(ref))


def parked(process: Process, entry: Entry) -> bool:
    """Whether it is stopped because this very operation has stopped it."""
    ours = entry.step in _PARKING and entry.threads.get(process.pid, 0) != 0
    return process.state == "T" and ours


def quiet_of(tools: Toolbox, entry: Entry) -> tuple[Rank, ...]:
    """Return those of the entry's processes that stand at a step, and nobody lets go on."""
    pids = [ref.pid for ref in living(tools, entry)] if entry.quiesced else []
    if not pids or (entry.operation == "restore" and not stands(tools, entry)):
        return ()
    return standing(tools, pids)


def criu_of(tools: Toolbox, entry: Entry) -> Process | None:
    """Return the CRIU of this operation if it is still at work: its folder is in its arguments."""
    folder = str(folder_of(tools.state_dir, entry.id))
    for pid in tools.proc.pids():
        process = tools.proc.process(pid)
        if process is not None and "-W" in process.argv and folder in process.argv:
            return process
    return None


def made_tasks(tools: Toolbox, entry: Entry) -> tuple[Process, ...]:
    """Return the tasks that a restore has made and whose job does not stand.

    Those whose identity was written down are surely its own. Before that a pid of the image is
    one only if it is younger than the restore and still what CRIU works with. In a pid namespace
    that was made for it, everything is.
    """
    if entry.space is not None:
        all_in = () if stands(tools, entry) else inhabitants(tools, entry.space)
        found = (tools.proc.process(ref.pid) for ref in all_in)
        return tuple(process for process in found if process is not None)
    if entry.processes:
        known = [tools.proc.process(ref.pid) for ref in living(tools, entry)]
        there = tuple(process for process in known if process is not None)
        return () if stands(tools, entry) else there
    made = []
    for pid in entry.pids:
        process = tools.proc.process(pid)
        young = process is not None and process.ref.start_time >= entry.owner.start_time
        if process is not None and young and not process.zombie and tools.proc.half_made(pid):
            made.append(process)
    return tuple(made)


def stands(tools: Toolbox, entry: Entry) -> bool:
    """Whether a restore had come so far that the whole job runs: only the last look is missing."""
    alive = living(tools, entry)
    if entry.step in STANDING:  # whatever has become of it since, it is nobody's half-made task
        return bool(alive)
    # a child of its may have ended since, as any does; its root and its GPU processes may not
    needed = {ref.pid for ref in entry.processes[:1]} | set(entry.first)
    if not needed or not needed.issubset(ref.pid for ref in alive):
        return False
    now = (tools.proc.process(ref.pid) for ref in alive if ref.pid in entry.first)
    if any(process is not None and process.stopped for process in now):
        return False
    if any(tools.proc.half_made(ref.pid) for ref in alive):
        return False
    states = ask(tools, entry.first)
    return all(states.get(pid) is CudaState.RUNNING for pid in entry.first)


def ask(tools: Toolbox, pids: Iterable[int]) -> dict[int, CudaState]:
    """Return the driver's states, FAILED for a process that it cannot be asked about."""
    wanted = list(pids)
    if not wanted:
        return {}
    try:
        return dict(tools.cuda.states(wanted))
    except CudaCallFailed as why:
        return {one.pid: one.after or CudaState.FAILED for one in why.outcomes if not one.gone}
    except GpuckptError:  # the driver is gone or unfit: then so is every state
        return dict.fromkeys(wanted, CudaState.FAILED)


def remaps_of(tools: Toolbox, entry: Entry) -> tuple[Remap, ...]:
    """Return the names that this dump's CRIU has made and not removed.

    Only a name that was not there before, and of a file that one of its processes has. If the
    image was finished, that needs them.
    """
    if committed(tools, entry):
        return ()
    return tuple(
        remap
        for linked in entry.linked
        for remap in tools.files.remaps(linked.folder)
        if (remap.device, remap.inode) == (linked.device, linked.inode)
        and remap.path not in linked.before
    )


def files_of(tools: Toolbox, entry: Entry) -> LeftFiles:
    """Return what this restore has done to files; after a boot what can be told of it still.

    A job that went on, be it that it has come to its end since, may have worked with them for days.
    """
    if not entry.placed and not entry.cuts:
        return LeftFiles()
    here = same_boot(tools, entry)
    went_on = entry.step in STANDING | {"resume"} or (not here and bool(entry.processes))
    if went_on or here:
        return LeftFiles(entry.placed, entry.cuts, went_on or stands(tools, entry))
    return LeftFiles(lasting(tools, entry.placed), lasting_cuts(tools, entry.cuts))


def committed(tools: Toolbox, entry: Entry) -> bool:
    """Whether the image of this dump is there, or may be: its stage has become it."""
    if entry.operation == "restore" or not entry.stage:
        return False
    if sent.in_store(entry):
        return sent.may_be_whole(tools, entry)
    return not Path(entry.stage).exists() and (Path(entry.image) / "manifest.json").is_file()


def suspension(pid: int, state: CudaState, command: str, remedy: str) -> Finding:
    """Return what to say of a process whose CUDA state is not where it should be."""
    what = {
        CudaState.LOCKED: "The driver has locked it: its next CUDA call waits.",
        CudaState.CHECKPOINTED: "Its GPU memory is in host memory, and it cannot use the GPU.",
    }
    reason = what.get(state, "The driver cannot bring it back.")
    if state is CudaState.FAILED:
        remedy = "Restore the job from an image, or end it: its GPU state is lost."
    return blocker(f"left-{state}", command, reason, remedy, pid)


def _suspended(tools: Toolbox, entry: Entry) -> Iterator[Finding]:
    """CUDA processes that are not in their first state; one that is stopped is never asked."""
    alive = {ref.pid for ref in living(tools, entry)}
    askable: dict[int, Process] = {}
    for pid in sorted(alive):
        process = tools.proc.process(pid)
        if process is None:
            continue
        if process.stopped:
            yield _stopped(process, entry, tools.proc.process(process.tracer))
        elif pid in entry.first:
            askable[pid] = process
    for pid, state in ask(tools, askable).items():
        if state not in {entry.first[pid], CudaState.NONE}:
            yield suspension(pid, state, askable[pid].command, REPAIR)


def _stopped(process: Process, entry: Entry, tracer: Process | None) -> Finding:
    if parked(process, entry):
        reason = "It was stopped by gpuckpt, and its GPU memory is in host memory."
        return blocker("left-parked", process.command, reason, REPAIR, process.pid)
    if tracer is not None:
        reason = f"Process {tracer.pid} ({tracer.comm}) holds it."
        return blocker("left-traced", process.command, reason, REPAIR, process.pid)
    reason = "It is stopped, and not by gpuckpt."
    return warning(
        "stopped",
        process.command,
        reason,
        f"Let it go on: kill -CONT {process.pid}",
        process.pid,
    )


def _cut(tools: Toolbox, entry: Entry) -> Iterator[Finding]:
    alive = [ref.pid for ref in living(tools, entry)]
    if not alive:  # the image of a job that is gone needs its connections as they are
        return
    log = folder_of(tools.state_dir, entry.id) / DUMP_LOG
    try:
        things = tools.net.cut(alive, log)
    except OSError as why:
        things = (f"TCP connections of process {alive[0]} (not known: {why})",)
    for thing in things:
        reason = "CRIU has cut the job's TCP connections and not put them back."
        yield blocker("left-tcp", thing, reason, REPAIR, alive[0])


def _held(tools: Toolbox, entry: Entry) -> Iterator[Finding]:
    if tools.net.held(table_of(entry)):
        reason = "A restore that was never finished held the job's TCP connections back by it."
        yield warning("left-filter", f"packet filter table {table_of(entry)}", reason, SWEEP)


def table_of(entry: Entry) -> str:
    """Return the name of the table by which a restore holds TCP connections back."""
    return f"gpuckpt-{entry.id}"


def _half_restored(process: Process) -> Finding:
    reason = "It is a task of a restore that was never finished; the image is intact."
    remedy = "`gpuckpt repair` ends it; then the image can be restored."
    return blocker("left-half-restored", process.command, reason, remedy, process.pid)


def _quiet(one: Rank) -> Finding:
    reason = f"It stands at step {one.step} of its work and waits to be told to go on."
    return blocker("left-quiet", f"pid {one.pid}", reason, REPAIR, one.pid)


def _remap(remap: Remap) -> Finding:
    reason = "CRIU has made this name for a file without one, and no image needs it."
    return warning("left-remap", remap.path, reason, SWEEP)


def _files(tools: Toolbox, entry: Entry) -> Iterator[Finding]:
    if sent.in_store(entry):
        yield from sent.left(tools, entry)
    elif entry.stage and Path(entry.stage).exists():
        yield warning("left-stage", entry.stage, "The image was never finished.", SWEEP)
    folder = folder_of(tools.state_dir, entry.id)
    if folder.exists():
        yield warning("left-run-folder", str(folder), "It is the work folder of CRIU.", SWEEP)
