"""gpuckpt rehearse: does it work for this job? It is tried in place, and the job goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from gpuckpt.cli import carriage, describe, units, values
from gpuckpt.cli.carriage import Exclude, Files, HashFiles, Include
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import (
    FileLocks,
    GhostLimit,
    Ignore,
    Level,
    LockTimeout,
    Pid,
    Quiesce,
    QuiesceTimeout,
    Settle,
    Tcp,
    Thp,
    option,
)
from gpuckpt.cli.page import Fields, Findings, Next, Outcome, Page, Timeline, Tone
from gpuckpt.errors import UsageError
from gpuckpt.location import Location
from gpuckpt.model import TcpPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.cli.page import Block
    from gpuckpt.flow.request import CopiesProved, DumpResult, RehearseResult

_PARTS = ("lock", "gpu-out", "digest", "gpu-turn", "prove", "stay", "gpu-in")
_TIME = "A dump takes its own time."
_TWICE = "Rehearse twice; `gpuckpt restore --prove` proves what a dump has written."

Stay = Annotated[
    float,
    option(
        "--stay",
        metavar="SECONDS",
        help="How long the job stays without its GPU state. Default: 0.",
        parser=values.seconds("--stay", zero=True),
    ),
]
RealDump = Annotated[
    bool, option("--dump", help="Make a real dump, check every byte of it, and remove it.")
]
Scratch = Annotated[
    Location | None,
    option(
        "--output",
        "-o",
        metavar="IMAGE",
        help="With --dump: where to. Default: where a dump would go.",
        parser=values.location("--output", whole=False),
    ),
]
Prove = Annotated[
    bool,
    option("--prove", help="Take the GPU state away twice, and compare the copies: every byte."),
]
Keep = Annotated[bool, option("--keep", help="With --dump: do not remove the image.")]


def rehearse(
    app: Application,
    pid: Pid,
    *,
    stay: Stay = 0.0,
    dump: RealDump = False,
    output: Scratch = None,
    keep: Keep = False,
    prove: Prove = False,
    settle: Settle = 1.0,
    lock_timeout: LockTimeout = 30.0,
    level: Level = None,
    tcp: Tcp = "none",
    file_locks: FileLocks = False,
    ghost_limit: GhostLimit = 1 << 30,
    files: Files = "auto",
    include: Include = None,
    exclude: Exclude = None,
    hash_files: HashFiles = "sampled",
    quiesce: Quiesce = False,
    quiesce_timeout: QuiesceTimeout = 60.0,
    ignore: Ignore = None,
    thp: Thp = False,
) -> int:
    """Try whether a job can be dumped, in place: it goes on afterwards.

    The driver takes the GPU state away and gives it back; with --dump a real dump is made in
    between, checked and removed. The job stands still meanwhile. Giving the state back is the
    risky half: if it fails the job stays suspended, nothing is ended, and `gpuckpt repair` goes
    on from there.
    """
    from gpuckpt.flow.rehearse import rehearse as act
    from gpuckpt.flow.request import DumpRequest, RehearseRequest

    if dump:
        _refuse((("--stay", stay, _TIME), ("--prove", prove, _TWICE)))
    else:
        _tell_useless((("--keep", keep), ("--output", output is not None)))
    what = DumpRequest(
        pid=pid,
        output=output,
        level=level,
        lock_timeout=lock_timeout,
        tcp=TcpPolicy(tcp),
        file_locks=file_locks,
        ghost_limit=ghost_limit,
        files=carriage.choice(files, include, exclude, hash_files),
        ignore=frozenset(ignore or ()),
        thp=thp,
        quiesce=quiesce,
        quiesce_timeout=quiesce_timeout,
    )
    request = RehearseRequest(what, stay=stay, settle=settle, real=dump, keep=keep, prove=prove)
    result = act(app.tools, request, app.reporter, app.interrupts)
    same = (*describe.dump_options(replace(what, output=None)), *(["--thp"] if thp else []))
    return app.show(outcome(result, same))


def _refuse(given: Iterable[tuple[str, object, str]]) -> None:
    """What a real dump cannot do as well."""
    for name, value, hint in given:
        if value:
            raise UsageError(f"{name} and --dump do not go together", hint=hint)


def _tell_useless(given: Iterable[tuple[str, bool]]) -> None:
    """What makes sense with a real dump alone.

    What the environment says holds for every command, and does no harm to this one.
    """
    for name, value in given:
        if value and not os.environ.get(values.variable(name)):
            raise UsageError(
                f"{name} is of no use without --dump",
                hint="Without it no image is made; `gpuckpt plan PID -o IMAGE` measures the disk.",
            )


def outcome(result: RehearseResult, same: tuple[str, ...] = ()) -> Outcome:
    """Say how long the job stood still, what it would weigh, and whether it is as before.

    `same` are the options by which a dump does what was rehearsed.
    """
    from gpuckpt.flow.rehearse import verdict

    error = verdict(result)
    blocks: list[Block] = [Fields(tuple(_rows(result)))]
    if found := (*result.wrong, *result.findings):
        blocks.append(Findings(found))
    blocks.append(Timeline("how it went", result.receipt))
    if error is None:
        blocks.append(Next((describe.command_line("gpuckpt", "dump", str(result.pid), *same),)))
    title, tone = "rehearsed, and the job goes on as before", Tone.GOOD
    if error is not None:
        title, tone = "rehearsed, and the job is not as before", Tone.BAD
    return Outcome(
        payload=_payload(result),
        page=Page(title, tone, tuple(blocks)),
        quiet=str(result.kept or ""),
        error=error,
    )


def _rows(result: RehearseResult) -> Iterator[tuple[str, str]]:
    number = units.count(len(result.pids), "process", "processes")
    yield "job", f"pid {result.pid} ({number}, {describe.on_gpu(len(result.cuda_pids))})"
    parts = ", ".join(
        f"{phase.name} {units.seconds(phase.seconds)}"
        for phase in result.receipt.phases
        if phase.name in _PARTS
    )
    yield "pause", units.seconds(result.pause) + (f" ({parts})" if parts else "")
    if result.dumped is not None:
        yield "total", f"{units.seconds(result.receipt.seconds)} until the image was written"
    if lock := describe.lock(result.receipt, len(result.cuda_pids)):
        yield "lock", lock
    if result.gpu_bytes:
        yield "gpu", f"{units.size(result.gpu_bytes)} went and came back"
    if result.proved is not None:
        yield "copies", _copies(result.proved)
    yield from _weight(result)
    yield "back", _back(result)


def _copies(proved: CopiesProved) -> str:
    said = f"proved: {proved.bytes} bytes in {units.count(proved.places, 'place')} came twice alike"
    moved = f", {proved.moved} elsewhere" if proved.moved else ""
    unknown = f"; {proved.elsewhere} bytes not compared" if proved.elsewhere > 0 else ""
    stamps = f"; the GPU's time in {units.count(proved.stamps, 'page')}" if proved.stamps else ""
    return said + moved + unknown + stamps + " left out" * bool(stamps)


def _weight(result: RehearseResult) -> Iterator[tuple[str, str]]:
    dumped = result.dumped
    if dumped is None:
        raw, stored = units.size(result.image_bytes), units.size(result.stored_bytes)
        yield "image", f"about {raw}, {stored} of it stored ({result.basis})"
        return
    rate = _rate(dumped)
    yield "image", describe.sizes(dumped.manifest) + (f", {rate}" if rate else "")
    yield "checked", "every byte" + (f", kept as {result.kept}" if result.kept else ", removed")


def _rate(dumped: DumpResult) -> str:
    stream = next((one for one in dumped.receipt.phases if one.name == "stream"), None)
    return units.rate(stream.bytes, stream.seconds) if stream is not None else ""


def _back(result: RehearseResult) -> str:
    moved, moves = result.moving
    if moves:
        moving = "it moves"
    else:
        moving = "it stands still" if moved else "it was idle before and is so now"
    same = "as before" if not result.wrong else "not as before, see below"
    return f"alive, {same}; {moving}"


def _payload(result: RehearseResult) -> dict[str, object]:
    return {
        "root_pid": result.pid,
        "pids": result.pids,
        "cuda_pids": result.cuda_pids,
        "gpu_bytes": result.gpu_bytes,
        "pause": result.pause,
        "seconds": result.receipt.seconds,
        "stay": result.stay,
        "image_bytes": result.image_bytes,
        "stored_bytes": result.stored_bytes,
        "totals": result.dumped.manifest.totals if result.dumped is not None else None,
        "image": result.kept,
        "moved_before": result.moving[0],
        "moves_now": result.moving[1],
        "proved": result.proved,
        "wrong": result.wrong,
        "findings": result.findings,
        "receipt": result.receipt,
    }
