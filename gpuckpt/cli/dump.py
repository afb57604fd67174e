"""gpuckpt dump: take a job off this host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpuckpt.cli import carriage, describe, timeline, units, values
from gpuckpt.cli.carriage import Exclude, Files, HashFiles, Include
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import (
    FileLocks,
    GhostLimit,
    Ignore,
    LeaveRunning,
    Level,
    LockTimeout,
    Output,
    Pid,
    Quiesce,
    QuiesceTimeout,
    Tcp,
    Thp,
    option,
)
from gpuckpt.cli.page import Fields, Findings, Next, Outcome, Page, Tone
from gpuckpt.model import TcpPolicy

if TYPE_CHECKING:
    from gpuckpt.flow.request import DumpResult


Label = Annotated[
    list[str] | None,
    option(
        "--label",
        metavar="NAME=VALUE",
        help="Write a label into the manifest. May be given several times.",
        parser=values.label,
    ),
]

Track = Annotated[
    list[Path] | None,
    option(
        "--track",
        metavar="PATH",
        help="A file or folder that a restore must find unchanged: a cache, an environment, data. "
        "May be given several times.",
        parser=values.path("--track", "the path of a file or folder"),
    ),
]


def dump(
    app: Application,
    pid: Pid,
    *,
    output: Output = None,
    leave_running: LeaveRunning = False,
    label: Label = None,
    track: Track = None,
    level: Level = None,
    lock_timeout: LockTimeout = 30.0,
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
    """Dump a running job with its GPU memory, and end it.

    PID and all its descendants are taken together. Until the image is complete the job can go
    on, and any failure puts it back; after that it can be restored.
    """
    from gpuckpt.flow.dump import dump as act
    from gpuckpt.flow.request import DumpRequest

    request = DumpRequest(
        pid=pid,
        output=output,
        leave_running=leave_running,
        labels=values.labels(label or ()),
        track=tuple(dict.fromkeys(map(str, track or ()))),
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
    return app.show(outcome(act(app.tools, request, app.reporter, app.interrupts)))


def outcome(result: DumpResult) -> Outcome:
    """Say what was dumped, where it is and how to bring it back."""
    manifest = result.manifest
    rows = [
        ("image", str(result.image)),
        ("job", describe.job(manifest)),
        ("size", describe.sizes(manifest)),
        *describe.carried(manifest),
        ("pause", describe.pause(result.pause, running=result.running)),
    ]
    if told := timeline.forecast(result.expected, result.pause, result.receipt):
        rows.append(("forecast", told))
    if result.running:
        rows.append(("total", f"{units.seconds(result.receipt.seconds)} until it was written"))
    if lock := describe.lock(result.receipt, len(manifest.cuda)):
        rows.append(("lock", lock))
    warnings = (Findings(result.findings),) if result.findings else ()
    ending = Next((describe.command_line("gpuckpt", "restore", str(result.image)),))
    done = "dumped, and the job goes on" if result.running else "dumped, and the job is off"
    return Outcome(
        payload={
            "image": result.image,
            "image_id": manifest.image_id,
            "root_pid": manifest.root_pid,
            "pids": [process.pid for process in manifest.tree],
            "running": result.running,
            "pause": result.pause,
            "seconds": result.receipt.seconds,
            "expected_pause": result.expected,
            "totals": manifest.totals,
            "labels": manifest.labels,
            "tracked": manifest.tracked,
            "tcp": {
                "policy": manifest.options.tcp,
                "by_itself": manifest.options.tcp_by_itself,
            },
            "quiesced": manifest.quiesced,
            "findings": result.findings,
            "receipt": result.receipt,
        },
        page=Page(done, Tone.GOOD, (Fields(tuple(rows)), *warnings, ending)),
        quiet=str(result.image),
    )
