"""plan of a process: what a dump would meet, take and need, and that nothing is touched to know.

The pass is the dump's own look; only the pages differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec.structs import replace

from gpuckpt.errors import Unfinished
from gpuckpt.flow.leftovers.found import cut_short, left_of
from gpuckpt.flow.leftovers.recover import concerns, story
from gpuckpt.flow.sight.forecast import Forecast, forecast
from gpuckpt.flow.sight.look import Sight, choices, look
from gpuckpt.flow.sight.plan import judge_dump, refusal
from gpuckpt.flow.sight.rules.gpu import GPU_NODE
from gpuckpt.flow.sight.storespeed import send_speed
from gpuckpt.flow.sight.tcp import Where, sort
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.history import History
from gpuckpt.flow.work.journal import Journal
from gpuckpt.location import Url
from gpuckpt.model import TcpPolicy, blocker
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.errors import GpuckptError
    from gpuckpt.events import Reporter
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding, GpuUse, Process

# a nearly full disk is not made fuller
LEAST_FREE: Final = 256 << 20
MIB: Final = 1 << 20

Role = Literal["CUDA", "GPU files", "plain"]


class Row(Value, frozen=True):
    """One process: what it is to the GPU, and what it holds where.

    `uses` has 0 bytes where NVML does not say; `indexes` are the GPUs' numbers, None for unknown.
    `visible` are the GPUs it could see, None for all.
    """

    process: Process
    role: Role
    uses: tuple[GpuUse, ...]
    indexes: tuple[int | None, ...]
    visible: tuple[str, ...] | None = None

    @property
    def gpu_bytes(self) -> int:
        """The bytes on all GPUs together."""
        return sum(use.bytes for use in self.uses)


class Outlook(Value, frozen=True):
    """What a dump as asked for would meet; `error` is what it would be refused with.

    `instead` is the same dump with other options, if these are all it takes to be let through.
    `thp`: with huge pages the pause would be clearly shorter.
    """

    request: DumpRequest
    sight: Sight
    rows: tuple[Row, ...]
    forecast: Forecast
    error: GpuckptError | None
    instead: DumpRequest | None = None
    thp: bool = False


def outlook(tools: Toolbox, request: DumpRequest, reporter: Reporter) -> Outlook:
    """Look at a job as a dump does, and stop there.

    Raises:
        NoSuchProcess, Forbidden: the pid names nothing that may be dumped.
    """
    with reporter.step("look", f"process {request.pid}"):
        sight = look(tools, request)
    records = History(tools.state_dir).records()
    speed = _write_speed(tools, request, sight, reporter)
    expected = forecast(sight.facts, records, speed, leave_running=request.leave_running)
    error = sight.error
    left = dict(_earlier(tools, sight))
    earlier = tuple(left)
    if earlier:
        away = frozenset[int | None]().union(*left.values())
        # to let a process run whose GPU state is away kills it: a repair does both in their order
        others = (one for one in sight.findings if one.id != "stopped" or one.pid not in away)
        sight = replace(sight, findings=(*earlier, *others))
        error = Unfinished(earlier[0].reason.rstrip("."), findings=sight.findings)
    instead = _instead(sight.facts, request) if error is not None and not earlier else None
    thp = hugepages.helps(sight.host, sight.facts.gpu_bytes)
    return Outlook(request, sight, tuple(_rows(sight)), expected, error, instead, thp)


def _earlier(tools: Toolbox, sight: Sight) -> Iterator[tuple[Finding, frozenset[int | None]]]:
    """Tell of runs that were cut short and left processes in a state to be mended first; which."""
    for entry in Journal(tools.state_dir).entries():
        mine = concerns(entry, sight.tree.pids, str(sight.output))
        if not mine or not cut_short(tools, entry):
            continue
        found = left_of(tools, entry)
        if touched := frozenset(one.pid for one in found if one.blocks):
            text = story(entry, found)
            told = blocker(
                "unfinished",
                entry.title,
                f"{text[:1].upper()}{text[1:]}.",
                "Put it back first: gpuckpt repair.",
            )
            yield told, touched


def _instead(facts: DumpFacts, request: DumpRequest) -> DumpRequest | None:
    """Return the dump with the options that lift what stops it, None if options cannot."""
    tcp = request.tcp
    if tcp is TcpPolicy.NONE and Where.OUTSIDE in sort(facts.look.tcp).values():
        tcp = TcpPolicy.CLOSE
    linked = any(one.links for one in facts.look.deleted)
    other = replace(
        request,
        tcp=tcp,
        ghost_limit=max(request.ghost_limit, _rounded(facts.needs.largest_ghost)),
        leave_running=request.leave_running and not linked,
    )
    resting = replace(other, quiesce=True)
    for one in (other, resting) if facts.cooperating else (other,):
        if refusal(judge_dump(facts, choices(one))) is None:
            return one
    return None


def _rounded(size: int) -> int:
    """Return whole MiB, at least as much: a file may grow a little until the dump."""
    return (-(-size // MIB) + 1) * MIB if size else 0


def _write_speed(
    tools: Toolbox, request: DumpRequest, sight: Sight, reporter: Reporter
) -> float | None:
    """Try the place that was named; the current folder may be anything and is left alone."""
    if isinstance(sight.output, Url):
        if sight.facts.taken or any(one.object == str(sight.output) for one in _stopping(sight)):
            return None
        with reporter.step("write", f"a little to {sight.output}, and away with it"):
            return send_speed(tools, sight.output)
    folder, free = sight.facts.destination, sight.facts.free_bytes
    if request.output is None or folder is None or (free or 0) < LEAST_FREE:
        return None
    with reporter.step("write", f"a little to {folder}, and away with it"):
        return tools.host.write_speed(folder)


def _stopping(sight: Sight) -> Iterator[Finding]:
    return (one for one in sight.findings if one.blocks)


def _rows(sight: Sight) -> Iterator[Row]:
    facts = sight.facts
    cuda = set(facts.cuda_pids)
    holders = {node.pid for node in facts.look.nodes if GPU_NODE.fullmatch(node.path)}
    known = {gpu.uuid: gpu.index for gpu in facts.nvidia.gpus} if facts.nvidia else {}
    for process in facts.tree.processes:
        uses = tuple(use for use in facts.uses if use.pid == process.pid)
        role: Role = "plain"
        if process.pid in cuda:
            role = "CUDA"
        elif process.pid in holders:
            role = "GPU files"
        indexes = tuple(known.get(use.uuid) for use in uses)
        yield Row(process, role, uses, indexes, facts.visible.get(process.pid))
