"""gpuckpt plan: what would stop a dump, or the restore of an image? Nothing is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpuckpt.cli import carriage, describe, preview, roster, timeline, units, values
from gpuckpt.cli.carriage import Exclude, HashFiles, Include
from gpuckpt.cli.context import Application
from gpuckpt.cli.filechoices import ALONG, CHANGED, MapPath, pairs
from gpuckpt.cli.options import (
    FileLocks,
    GhostLimit,
    GpuMap,
    Ignore,
    LeaveRunning,
    Output,
    Quiesce,
    Tcp,
    option,
)
from gpuckpt.cli.page import Fields, Findings, Next, Outcome, Page, Table, Tone
from gpuckpt.cli.suggest import pids_and_images
from gpuckpt.location import Location
from gpuckpt.model import TcpPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.cli.page import Block
    from gpuckpt.flow.outlook import Outlook
    from gpuckpt.flow.request import DumpRequest
    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.forecast import Forecast

_WORTH_A_LINE = 0.02
_MOST_ROOTS = 3


PlanTarget = Annotated[
    int | Location,
    typer.Argument(
        metavar="TARGET",
        help="The pid of a job's root, or the folder or URL of an image (./123 for a folder 123).",
        parser=values.plan_target,
        autocompletion=pids_and_images,
    ),
]


PlanFiles = Annotated[
    Literal["auto", "none", "all", "refuse", "keep", "replace"] | None,
    option(
        "--files",
        metavar="WHAT",
        help="Of a pid, which files go along: auto, none or all; of an image, what becomes of "
        "those that have changed: refuse, keep or replace.",
        parser=values.choice("--files", (*ALONG, *CHANGED)),
    ),
]


def plan(
    app: Application,
    target: PlanTarget,
    *,
    output: Output = None,
    leave_running: LeaveRunning = False,
    tcp: Tcp = "none",
    file_locks: FileLocks = False,
    ghost_limit: GhostLimit = 1 << 30,
    files: PlanFiles = None,
    include: Include = None,
    exclude: Exclude = None,
    hash_files: HashFiles = "sampled",
    quiesce: Quiesce = False,
    ignore: Ignore = None,
    gpu_map: GpuMap = None,
    map_path: MapPath = None,
) -> int:
    """Tell all that would stop a dump or a restore.

    Of a pid: a dump with these options. Of an image: its restore on this host, judged by the
    manifest alone. Nothing is touched. The exit status is 0 if it would be begun, otherwise that
    of its refusal.
    """
    from gpuckpt.flow.request import DumpRequest

    request = DumpRequest(
        pid=target if isinstance(target, int) else 0,
        output=output,
        leave_running=leave_running,
        tcp=TcpPolicy(tcp),
        file_locks=file_locks,
        ghost_limit=ghost_limit,
        files=carriage.choice(_of(ALONG, files), include, exclude, hash_files),
        ignore=frozenset(ignore or ()),
        quiesce=quiesce,
    )
    if not isinstance(target, int):
        from gpuckpt.flow.preview import preview as look

        _tell_idle(
            app, "a restore", [word for word in describe.dump_options(request) if word[0] == "-"]
        )
        seen = look(
            app.tools,
            target,
            gpu_map=values.gpu_pairs(gpu_map),
            choice=_of(CHANGED, files),
            moved=pairs(map_path or ()),
        )
        return app.show(preview.outcome(seen, gpu_map=gpu_map))
    from gpuckpt.flow.outlook import outlook

    idle = {"--gpu-map": gpu_map, "--map-path": map_path, "--files": files in CHANGED}
    _tell_idle(app, "a dump", [option for option, given in idle.items() if given])
    return app.show(outcome(outlook(app.tools, request, app.reporter)))


def _tell_idle(app: Application, of: str, options: Iterable[str]) -> None:
    """Name options of the other kind of plan; no reason to stop: the environment may set them."""
    told = " and ".join(dict.fromkeys(options))
    if told:
        app.reporter.note(f"{told}: no part of the plan of {of}")


def _of(words: tuple[str, ...], given: str | None) -> Any:  # noqa: ANN401 - one of them
    """Return what was given if it is meant for this kind of plan, else the default."""
    return given if given in words else words[0]


def outcome(seen: Outlook) -> Outcome:
    """Lay out what a dump would meet; programs get every process, a page only some."""
    sight = seen.sight
    blocks: list[Block] = [roster.table(seen.rows)]
    if sight.findings:
        blocks.append(Findings(sight.findings))
    if sight.kept:
        blocks.append(Fields((("tcp", sight.kept),)))
    blocks.append(_forecast(seen.forecast, sight.facts))
    if seen.thp:
        blocks.append(Fields((("faster", describe.THP),)))
    if seen.error is not None:
        blocks.append(Fields((("error", f"{seen.error.name}, exit {seen.error.exit_code}"),)))
    following = _following(seen)
    blocks.append(Next(following))
    return Outcome(
        payload={
            "target": "pid",
            "root_pid": seen.request.pid,
            "can_dump": seen.error is None,
            "output": sight.output,
            "criu": str(sight.criu),
            "tcp": {"policy": sight.options.tcp, "reason": sight.kept},
            "processes": [roster.payload(row) for row in seen.rows],
            "findings": sight.findings,
            "forecast": _numbers(seen.forecast),
            "files": carriage.payload(sight.facts.along),
            "thp_helps": seen.thp,
            "better_roots": sight.facts.better_roots,
            "next": following,
        },
        page=Page(_verdict(seen), Tone.GOOD if seen.error is None else Tone.BAD, tuple(blocks)),
        quiet="\n".join(dict.fromkeys(one.id for one in sight.findings if one.blocks)),
        error=seen.error,
    )


def _following(seen: Outlook) -> tuple[str, ...]:
    """Return what to type next: the dump if it can be, else what leads there."""
    request = seen.instead or seen.request
    if any(one.id == "unfinished" for one in seen.sight.findings):
        return (describe.command_line("gpuckpt", "repair", str(request.pid)),)
    if seen.error is None or seen.instead is not None:
        faster = ("--thp",) if seen.thp else ()
        return (_command("dump", request.pid, request, *faster),)
    roots = seen.sight.facts.better_roots[:_MOST_ROOTS] or (request.pid,)
    return tuple(_command("plan", pid, request) for pid in roots)


def _forecast(known: Forecast, facts: DumpFacts) -> Table:
    """Return what it will take, a line each, with what each number rests on."""
    cuda = len(facts.cuda_pids)
    rows = [
        ("image", units.size(known.raw.value), known.raw.basis),
        *carriage.rows(facts.along, known.raw.value),
        ("stored", units.size(known.stored.value), known.stored.basis),
    ]
    if known.disk_free is not None:
        rows.append(("disk free", units.size(known.disk_free), _disk(known)))
    elif known.write_speed:
        rows.append(("store", "", f"takes {known.write_speed / 1e9:.2f} GB/s, measured"))
    if known.spool is not None:
        there = f"can wait in memory, of {units.size(known.spool.available)} available"
        rows.append(("spool", units.size(known.spool.bytes), there))
    if cuda:
        have = f"{known.memory.basis}; {units.size(known.memory_available)} available"
        rows.append(("host memory", units.size(known.memory.value), have))
        basis = f"{units.count(cuda, 'process', 'processes')}, before the pause; "
        rows.append(("attach", units.seconds(known.attach.value), basis + known.attach.basis))
    said = timeline.lately(known.lately)
    rows.append(("pause", units.seconds(known.pause), "the sum of" + (said and f"; {said}")))
    rows += [
        (f"  {name}", units.seconds(part.value), part.basis)
        for name, part in known.parts.items()
        if part.value > known.pause * _WORTH_A_LINE
    ]
    return Table("", ("FORECAST", "", "BASIS"), tuple(rows), right=frozenset({1}))


def _disk(known: Forecast) -> str:
    told = [f"on {known.filesystem}"] if known.filesystem else []
    if known.write_speed:
        told.append(f"takes {known.write_speed / 1e9:.1f} GB/s, measured")
    return ", ".join(told)


def _numbers(known: Forecast) -> dict[str, object]:
    return {
        "raw": known.raw,
        "stored": known.stored,
        "host_memory": known.memory,
        "host_memory_available": known.memory_available,
        "disk_free": known.disk_free,
        "inodes_free": known.inodes_free,
        "filesystem": known.filesystem,
        "network_filesystem": known.network,
        "write_speed": known.write_speed,
        "spool": known.spool,
        "attach": known.attach,
        "pause": {"value": known.pause, "parts": known.parts},
        "lately": known.lately,
    }


def _verdict(seen: Outlook) -> str:
    blockers = sum(one.blocks for one in seen.sight.findings)
    if blockers:
        stop = "stops" if blockers == 1 else "stop"
        return f"{units.count(blockers, 'finding')} {stop} a dump of process {seen.request.pid}"
    warnings = len(seen.sight.findings)
    but = f", with {units.count(warnings, 'warning')}" if warnings else ""
    return f"process {seen.request.pid} can be dumped now{but}"


def _command(verb: str, pid: int, request: DumpRequest, *more: str) -> str:
    """Return a command line with the options that were asked about."""
    return describe.command_line("gpuckpt", verb, str(pid), *describe.dump_options(request), *more)
