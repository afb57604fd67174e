"""gpuckpt restore: bring a job back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from gpuckpt.cli import describe, filechoices, moved, preview, timeline, units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.filechoices import ChangedFiles, MapPath
from gpuckpt.cli.options import (
    ForceGate,
    GpuMap,
    ImageFolder,
    Settle,
    Thp,
    option,
)
from gpuckpt.cli.page import Fields, Findings, Outcome, Page, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.request import RestoreRequest, RestoreResult


Probe = Annotated[
    str | None,
    option(
        "--probe",
        metavar="COMMAND",
        help="Shell command that must succeed once the job is back.",
        parser=values.command("--probe"),
    ),
]
ProbeTimeout = Annotated[
    float,
    option(
        "--probe-timeout",
        metavar="SECONDS",
        help="How long the probe is tried, and --post-restore may take. Default: 60.",
        parser=values.seconds("--probe-timeout", zero=False),
    ),
]
PostRestore = Annotated[
    str | None,
    option(
        "--post-restore",
        metavar="COMMAND",
        help="Shell command that is told of the job once it runs, before the probe, in "
        "GPUCKPT_ROOT_PID, _PIDS, _IMAGE, _GPU_MAP, _CHANGED, _HOSTNAME_WAS, _NOW and more.",
        parser=values.command("--post-restore"),
    ),
]
Wait = Annotated[
    bool,
    option("--wait", help="Stay as the job's parent and end with its exit status."),
]
OnVerifyFail = Annotated[
    Literal["keep", "kill"],
    option(
        "--on-verify-fail",
        metavar="WHAT",
        help="A job that fails the look afterwards: keep it (the default) or kill it.",
        parser=values.choice("--on-verify-fail", ("keep", "kill")),
    ),
]
PidNamespace = Annotated[
    bool,
    option(
        "--pid-namespace",
        help="Give the job pids of its own: it runs although its old ones are taken.",
    ),
]
Prove = Annotated[
    bool,
    option(
        "--prove",
        help="Read all memory back before a task runs, and compare it with the image.",
    ),
]
PlanOnly = Annotated[
    bool,
    option("--plan", help="Only tell what would stop the restore, as `gpuckpt plan IMAGE` does."),
]


def restore(
    app: Application,
    image: ImageFolder,
    *,
    post_restore: PostRestore = None,
    probe: Probe = None,
    probe_timeout: ProbeTimeout = 60.0,
    wait: Wait = False,
    settle: Settle = 1.0,
    on_verify_fail: OnVerifyFail = "keep",
    gpu_map: GpuMap = None,
    force_gate: ForceGate = None,
    pid_namespace: PidNamespace = False,
    files: ChangedFiles = "refuse",
    map_path: MapPath = None,
    prove: Prove = False,
    thp: Thp = False,
    plan: PlanOnly = False,
) -> int:
    """Restore the job of an image and print its root pid.

    The job gets the pids it had, with --pid-namespace inside a namespace of its own. Nothing is
    started unless this host matches the image and every byte matches its digest. An image can be
    restored any number of times.
    """
    from gpuckpt.flow.request import RestoreRequest
    from gpuckpt.flow.restore import restore as act
    from gpuckpt.flow.returning.waiting import wait_for

    request = RestoreRequest(
        image=image,
        post_restore=post_restore,
        probe=probe,
        probe_timeout=probe_timeout,
        settle=settle,
        on_verify_fail=on_verify_fail,
        force_gates=frozenset(force_gate or ()),
        stays=wait,
        gpu_map=values.gpu_pairs(gpu_map),
        thp=thp,
        pid_namespace=pid_namespace,
        prove=prove,
        files=files,
        map_path=filechoices.pairs(map_path or ()),
    )
    if plan:
        return _plan(app, request, gpu_map)
    result = act(app.tools, request, app.reporter, app.interrupts)
    if not wait:
        return app.show(outcome(result))
    app.passing_on = True
    if not app.settings.json:  # one object only, so it has to wait for the exit status
        app.show(outcome(result))
    status: int = wait_for(app.tools, result, app.interrupts, app.reporter)
    if app.settings.json:
        app.show(outcome(result, job_exit=status))
    return status


def _plan(app: Application, request: RestoreRequest, gpu_map: str | None) -> int:
    """Tell what this restore would meet here."""
    from gpuckpt.flow.preview import preview as look

    seen = look(
        app.tools,
        request.image,
        request.force_gates,
        stays=request.stays,
        gpu_map=request.gpu_map,
        apart=request.pid_namespace,
        choice=request.files,
        moved=request.map_path,
    )
    return app.show(preview.outcome(seen, request.force_gates, gpu_map))


def _inside(result: RestoreResult) -> Iterator[tuple[str, str]]:
    """Say what the job's pids are to itself, and who ends as it does."""
    if (inside := result.inside) is not None:
        yield "inside", f"pid {inside.root_pid}, processes {' '.join(map(str, inside.pids))}"
        yield "init", f"{inside.init}: passes signals on, ends with the job's exit status"
        for old, new in inside.renamed.items():
            yield "renamed", f"the driver's socket {old} is now {new}"


def outcome(result: RestoreResult, job_exit: int | None = None) -> Outcome:
    """Say which pids run again; `job_exit` is the job's own exit status, once it has one."""
    from gpuckpt.flow.work.history import until_it_ran

    rows = [
        ("pid", str(result.root_pid)),
        ("processes", " ".join(map(str, result.pids))),
        *_inside(result),
        ("image", str(result.image)),
        ("took", units.seconds(result.receipt.seconds)),
    ]
    if told := timeline.reached(result.receipt):
        rows.append(("after", told))
    took = until_it_ran(result.receipt)
    if told := timeline.forecast(result.expected, took, result.receipt):
        rows.append(("forecast", told))
    if result.proved is not None:
        rows.append(("memory", describe.proved(result.proved)))
    if result.progress:
        said = {"ran": "uses CPU time again", "idle": "only sleeps so far: it may be waiting"}
        rows.append(("progress", said[result.progress]))
    if result.kept is not None:
        rows.append(("receipt", str(result.kept)))
    changed = moved.table(result.identity)
    rows += [("kept", f"{aside}, of {path}") for path, aside in result.aside.items()]
    warnings = (Findings(result.findings),) if result.findings else ()
    payload: dict[str, object] = {
        "image": result.image,
        "root_pid": result.root_pid,
        "pids": result.pids,
        "inside": result.inside,
        "gpu_map": result.gpu_map,
        "identity": moved.payload(result.identity),
        "progress": result.progress,
        "proved": result.proved,
        "aside": result.aside,
        "findings": result.findings,
        "receipt": result.receipt,
        "expected": result.expected,
        "image_id": result.image_id,
        "account": result.account,
        "kept": result.kept,
    }
    if job_exit is not None:
        payload["job_exit"] = job_exit
    return Outcome(
        payload=payload,
        page=Page(
            "restored, and the job runs", Tone.GOOD, (Fields(tuple(rows)), *changed, *warnings)
        ),
        quiet=str(result.root_pid),
        status=job_exit or 0,
    )
