"""gpuckpt restore: bring a job back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from gpuckpt.cli import (
    describe,
    failure,
    fallback,
    filechoices,
    moved,
    preview,
    timeline,
    units,
    values,
)
from gpuckpt.cli.context import Application
from gpuckpt.cli.fallback import ElseCommand, ElseStart, EnvFile, Try
from gpuckpt.cli.filechoices import ChangedFiles, MapPath
from gpuckpt.cli.options import (
    ForceGate,
    GpuMap,
    Images,
    Settle,
    Thp,
    option,
)
from gpuckpt.cli.page import Fields, Findings, Outcome, Page, Tone
from gpuckpt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.fallback import Back
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
    image: Images,
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
    several: Try = False,
    else_start: ElseStart = False,
    otherwise: ElseCommand = None,
    env_file: EnvFile = None,
) -> int:
    """Restore the job of an image and print its root pid.

    The job gets the pids it had, with --pid-namespace inside a namespace of its own. Nothing is
    started unless this host matches the image and every byte matches its digest. An image can be
    restored any number of times.
    """
    from gpuckpt.flow.fallback import FallbackRequest, bring_back
    from gpuckpt.flow.request import RestoreRequest

    request = RestoreRequest(
        image=fallback.one_image(image, several=several),
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
        if several:
            raise UsageError("--plan looks at one image", hint="Name that alone, without --try.")
        return _plan(app, request, gpu_map)
    cold = fallback.cold(start=else_start, command=otherwise, files=env_file or (), inherits=wait)
    asked = FallbackRequest(request, tuple(image), several, cold)
    return _end(app, bring_back(app.tools, asked, app.reporter, app.interrupts), wait=wait)


def _end(app: Application, back: Back, *, wait: bool) -> int:
    """Tell what came of it; with `wait` stay until the job ends, and end as it does."""
    if not wait:
        return app.show(_told(back))
    app.passing_on = True
    if not app.settings.json:  # one object only, so it has to wait for the exit status
        app.show(_told(back))
    status = _wait(app, back)
    if app.settings.json:
        app.show(_told(back, job_exit=status))
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


def _wait(app: Application, back: Back) -> int:
    from gpuckpt.flow.coldstart import Started
    from gpuckpt.flow.launch import stay_with
    from gpuckpt.flow.returning.waiting import wait_for

    if isinstance(back.job, Started):
        return stay_with(back.job.ready.child, app.state_dir, app.reporter, app.interrupts)
    return wait_for(app.tools, back.job, app.interrupts, app.reporter)


def _told(back: Back, job_exit: int | None = None) -> Outcome:
    from gpuckpt.flow.coldstart import Started

    if isinstance(back.job, Started):
        return fallback.outcome(back, back.job, job_exit)
    return outcome(back.job, job_exit, back)


def _inside(result: RestoreResult) -> Iterator[tuple[str, str]]:
    """Say what the job's pids are to itself, and who ends as it does."""
    if (inside := result.inside) is not None:
        yield "inside", f"pid {inside.root_pid}, processes {' '.join(map(str, inside.pids))}"
        yield "init", f"{inside.init}: passes signals on, ends with the job's exit status"
        for old, new in inside.renamed.items():
            yield "renamed", f"the driver's socket {old} is now {new}"


def _rows(result: RestoreResult) -> Iterator[tuple[str, str]]:
    """Say which pids run again, how soon, and what is to be known of it."""
    from gpuckpt.flow.work.history import until_it_ran

    yield "pid", str(result.root_pid)
    yield "processes", " ".join(map(str, result.pids))
    yield from _inside(result)
    yield "image", str(result.image)
    yield "took", units.seconds(result.receipt.seconds)
    if told := timeline.reached(result.receipt):
        yield "after", told
    took = until_it_ran(result.receipt)
    if told := timeline.forecast(result.expected, took, result.receipt):
        yield "forecast", told
    if result.proved is not None:
        yield "memory", describe.proved(result.proved)
    if result.progress:
        said = {"ran": "uses CPU time again", "idle": "only sleeps so far: it may be waiting"}
        yield "progress", said[result.progress]
    if result.kept is not None:
        yield "receipt", str(result.kept)
    yield from (("kept", f"{aside}, of {path}") for path, aside in result.aside.items())


def outcome(
    result: RestoreResult, job_exit: int | None = None, back: Back | None = None
) -> Outcome:
    """Say which pids run again; `job_exit` is the job's own exit status, once it has one.

    `back` tells what else was tried.
    """
    rows = [*_rows(result)]
    several = back is not None and len(back.attempts) > 1
    rows += timeline.lost(back.lost, cold=False) if back and several else ()
    tried = (failure.attempts(back.attempts),) if back and several else ()
    changed = moved.table(result.identity)
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
        "started": None,
        **fallback.payload(back),
    }
    if job_exit is not None:
        payload["job_exit"] = job_exit
    return Outcome(
        payload=payload,
        page=Page(
            "restored, and the job runs",
            Tone.GOOD,
            (Fields(tuple(rows)), *tried, *changed, *warnings),
        ),
        quiet=str(result.root_pid),
        status=job_exit or 0,
    )
