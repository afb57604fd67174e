"""Results and errors as the flows give them, for tests that look at how they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from msgspec.structs import replace

from gpuckpt import errors
from gpuckpt.errors import HostMismatch
from gpuckpt.flow.coldstart import Started
from gpuckpt.flow.compat import Candidate, Compat, Fit
from gpuckpt.flow.doctor import Check, DoctorResult
from gpuckpt.flow.fallback import Back
from gpuckpt.flow.gc import GcResult, Removed
from gpuckpt.flow.jobs import Job
from gpuckpt.flow.leftovers.found import suspension
from gpuckpt.flow.leftovers.mending import Deed
from gpuckpt.flow.outlook import Outlook, Row
from gpuckpt.flow.repair import RepairResult
from gpuckpt.flow.request import DumpRequest, DumpResult, RehearseResult, RestoreResult
from gpuckpt.flow.returning.target.saved import target_facts
from gpuckpt.flow.show import ShowResult
from gpuckpt.flow.sight.along import Along, Taken
from gpuckpt.flow.sight.forecast import forecast
from gpuckpt.flow.sight.look import Sight
from gpuckpt.flow.sight.plan import refusal
from gpuckpt.flow.status import Member, StatusResult, Unfinished
from gpuckpt.flow.trial import Trial
from gpuckpt.flow.unchanged import Unchanged
from gpuckpt.flow.verify import VerifyResult
from gpuckpt.flow.work.history import Record
from gpuckpt.flow.work.journal import Entry
from gpuckpt.image.identity import changes
from gpuckpt.image.manifest import (
    DumpOptions,
    FileEntry,
    HostRecord,
    Manifest,
    NvidiaRecord,
    ProcessRecord,
    Totals,
)
from gpuckpt.image.outside import FileRecord, ListenerRecord, Outside
from gpuckpt.model import (
    Attempt,
    Carriage,
    CudaState,
    Finding,
    Gpu,
    GpuUse,
    Lost,
    Process,
    ProcessRef,
    Severity,
    TcpPolicy,
    Version,
)
from gpuckpt.timing import Event, Foreign, Interval, Phase, Receipt, Wait
from gpuckpt.tools.criurun import CriuOptions
from gpuckpt.tools.starting import Ready, Start
from gpuckpt.tools.usedfiles import UsedFile
from tests import gpu_samples, host_samples, plan_samples

if TYPE_CHECKING:
    from gpuckpt.image.damage import Damage

GIB = 1 << 30
UUID = "GPU-6c9b9a2e-8d5f-4a57-9b0e-2f1f4f0f9d11"

RECEIPT = Receipt(
    "dump",
    "2026-07-14T03:02:11Z",
    17.31,
    (
        Phase("look", 0.0, 0.41),
        Phase("prepare", 0.41, 0.02),
        Phase("lock", 0.43, 0.12),
        Phase("checkpoint", 0.55, 6.72, 12 * GIB),
        Phase("stream", 7.27, 8.11, int(14.5 * GIB)),
        Phase("commit", 15.38, 0.93),
        Phase("end", 16.31, 1.0),
    ),
)

RECORD = Record(
    operation="restore",
    started="2026-07-14T03:09:40Z",
    receipt=Receipt(
        "restore",
        "2026-07-14T03:09:40Z",
        12.5,
        (
            Phase("gates", 0.1, 0.4),
            Phase("criu", 0.5, 8.0, int(14.5 * GIB), waits=(Wait("CRIU", "storage", 2.5),)),
            Phase("approve", 8.0, 0.25, inside="criu"),
            Phase("gpu-in", 8.6, 3.2, 12 * GIB),
            Phase("tidying", 9.0, 1.0, inside="all"),
        ),
        unaccounted=0.9,
        events=(Event("unlocked", 11.8),),
        intervals=(
            Interval("runs", "begun", "unlocked", 11.8),
            Interval("probe-ready", "begun", "probe-ready", None, "no --probe was given"),
        ),
        foreign=(Foreign("criu", "gettimeofday", {"restore": 7.9}, {"pages_restored": 3_700_000}),),
    ),
    expected=10.0,
    outcome="done",
)

FINDINGS = (
    Finding(
        "io-uring",
        Severity.BLOCKER,
        "fd 5",
        "an io_uring ring is open, and CRIU cannot dump one.",
        "Start the job with kernel.io_uring_disabled=2, or without libuv's ring.",
        pid=4711,
    ),
    Finding(
        "gpu-leftover",
        Severity.BLOCKER,
        "/dev/nvidia0",
        "a child forked without exec holds the GPU open, and the driver does not know it.",
        "Use spawn or forkserver workers, or dump between epochs when the workers have ended.",
        pid=4720,
    ),
    Finding(
        "stdout-pipe",
        Severity.WARNING,
        "fd 1",
        "stdout is a pipe to pid 4699 outside the tree: after a restore nobody reads it.",
        "Let the job write to a file.",
        pid=4711,
    ),
    Finding(
        "gate-file-size",
        Severity.BLOCKER,
        "/home/user/experiments/2026-07/night-7/logs/train-rank0-of-8.log",
        "it had 18,264 bytes at the dump and has 20,001 now.",
        "Bring the file back to what it was.",
    ),
)


def process_record(pid: int, ppid: int, argv: tuple[str, ...], cuda: str) -> ProcessRecord:
    return ProcessRecord(
        pid=pid,
        ppid=ppid,
        pgid=4711,
        sid=4711,
        start_time=881123,
        threads=tuple(range(pid, pid + 3)),
        comm=argv[0][:15],
        argv=argv,
        exe="/usr/bin/python3.11",
        cwd="/home/user",
        uid=1000,
        gid=1000,
        cuda=cuda,
    )


MANIFEST = Manifest(
    needs=("criu-stream", "cuda-in-pages"),
    image_id="5f0c1c5a9d",
    created="2026-07-14T03:02:11Z",
    gpuckpt="0.1.0",
    criu="4.2.1",
    root_pid=4711,
    host=HostRecord(
        hostname="node7",
        kernel="6.18.5",
        boot_id="b",
        arch="x86_64",
        libc="glibc 2.36",
        cpu_model="AMD EPYC 9654 96-Core Processor",
        cpu_flags=("avx2",),
        memory_total=512 * GIB,
    ),
    nvidia=NvidiaRecord(
        driver="580.159.04",
        cuda="13.0",
        gpus=(Gpu(0, UUID, "NVIDIA H200", 140 * GIB, 128 * GIB, "0000:01:00.0"),),
        uses=(GpuUse(4711, UUID, 12 * GIB),),
    ),
    tree=(
        process_record(4711, 1, ("python", "train.py", "--epochs", "90"), "running"),
        process_record(4720, 4711, ("python", "-c", "worker\nloop"), "none"),
    ),
    ids=(4711, 4712, 4713, 4720),
    options=DumpOptions(
        tcp=TcpPolicy.NONE, file_locks=False, shell_job=False, link_remap=False, leave_running=False
    ),
    outside=Outside(
        files=(
            FileRecord(
                path="/home/user/train.log", size=18264, mode=0o644, build_id="", mtime_ns=1
            ),
            FileRecord(
                path="/usr/bin/python3.11", size=6_000_000, mode=0o755, build_id="ab", mtime_ns=1
            ),
        ),
        listeners=(ListenerRecord(protocol="tcp", address="127.0.0.1", port=29500),),
        terminals=("/dev/pts/3",),
    ),
    labels={"run": "night-7"},
    files=(
        FileEntry(
            name="pages-1.img",
            raw_size=int(14.5 * GIB),
            stored_size=int(12.1 * GIB),
            frames=3712,
            stored_blake3="0" * 64,
            table_blake3="0" * 64,
        ),
    ),
    totals=Totals(raw=int(14.5 * GIB), stored=int(12.1 * GIB), pages=int(14.2 * GIB)),
    receipt=RECEIPT,
)


def process(pid: int, ppid: int, **given: object) -> Process:
    fields: dict[str, object] = {
        "pgid": pid,
        "sid": pid,
        "state": "S",
        "threads": (pid,),
        "comm": "python",
        "argv": ("python", "train.py"),
        "exe": "/usr/bin/python3.11",
        "cwd": "/",
        "uid": 0,
        "gid": 0,
        "rss": 0,
    }
    return Process(ref=ProcessRef(pid, pid), ppid=ppid, **{**fields, **given})  # type: ignore[arg-type]


def outlook(*findings: Finding, ranks: int = 1, workers: int = 0) -> Outlook:
    """Return what is seen of a job: a plain root, ranks on GPUs, workers that are all alike."""
    log = UsedFile("/work/log", 1, 7, ("/work/log",), size=9000, bytes=8192, written=True)
    libc = UsedFile("/lib/libc.so.6", 1, 8, ("/lib/libc.so.6",), size=1 << 21, bytes=1 << 21)
    along = Along(taken=(Taken(log, Carriage.WRITTEN),), kept=(libc,))
    known = plan_samples.cuda_facts(along=along)
    sight = Sight(known, IMAGE, Version("4.2.1"), CriuOptions(), findings)
    root = Row(known.tree.processes[0], "plain", (), ())
    on_gpu = (
        Row(
            plan_samples.process(110 + number, argv=("python3", "rank.py", str(number))),
            "CUDA",
            (GpuUse(110 + number, f"GPU-{number}", 8 * GIB),),
            (number,),
        )
        for number in range(ranks)
    )
    alike = (
        Row(plan_samples.process(200 + number, argv=("python3", "worker.py")), "plain", (), ())
        for number in range(workers)
    )
    rows = (root, *on_gpu, *alike)
    request = DumpRequest(100, IMAGE)
    return Outlook(request, sight, rows, forecast(known, (), 1e9), refusal(findings))


IMAGE = Path("/var/ckpt/maintenance-2026-07/python-4711-20260714T030211Z.gpuckpt")


def dump_result(*, running: bool = False) -> DumpResult:
    return DumpResult(
        image=IMAGE,
        manifest=MANIFEST,
        receipt=RECEIPT,
        findings=(FINDINGS[2],),
        pause=15.8,
        running=running,
    )


def restore_result() -> RestoreResult:
    return RestoreResult(
        image=IMAGE,
        root_pid=4711,
        pids=(4711, 4720),
        receipt=RECEIPT,
        findings=(),
        gpu_map={UUID: "GPU-other"},
    )


def back(*tried: Attempt) -> Back:
    done = Attempt(str(IMAGE), MANIFEST.created, "restored")
    return Back(restore_result(), (*tried, done), Lost(60.0, 120.0))


def started() -> Back:
    """Return a job that was started in place of a restore."""
    why = errors.ImageDamaged("the image is damaged")
    tried = Attempt(str(IMAGE), MANIFEST.created, why.name, why.exit_code, why.message)
    start = Start(
        ("python", "a job.py"),
        {},
        cwd="/data",
        stdout="/data/out.log",
        log=Path("/state/cold/a.log"),
    )
    ready: Ready = mock.Mock()
    job = Started(99, why, start, IMAGE, RECEIPT, ready)
    return Back(job, (tried, Attempt("", "", "started")), Lost(60.0, 3600.0))


def compat_result() -> Compat:
    host = host_samples.saved("node9", gpu_samples.nvidia(gpu_samples.switched("b", 1)))
    facts = target_facts(host, MANIFEST)
    fit = Fit(
        image=IMAGE,
        manifest=MANIFEST,
        host="node9",
        facts=facts,
        findings=FINDINGS[2:3],
        error=None,
        not_judged=("pids",),
        identity=changes(MANIFEST, facts.host, facts.gpus),
        memory=GIB,
    )
    return Compat((IMAGE,), (Candidate("node9", IMAGE / "a.json", 60.0),), (fit,))


def verify_result(image: Path = IMAGE, *damage: Damage) -> VerifyResult:
    return VerifyResult(image, MANIFEST, 31, 12 * GIB, 14 * GIB, 4.2, damage)


def rehearse_result(*wrong: Finding, dumped: DumpResult | None = None) -> RehearseResult:
    phases = (Phase("lock", 0.0, 0.1), Phase("gpu-out", 0.1, 0.6), Phase("gpu-in", 0.7, 0.7))
    return RehearseResult(
        pid=4711,
        pids=(4711, 4720),
        cuda_pids=(4711,),
        gpu_bytes=12 * GIB,
        image_bytes=16 * GIB,
        pause=1.5,
        stay=0.0,
        moving=(True, not wrong),
        receipt=Receipt("rehearse", "2026-07-14T03:02:11Z", 2.1, phases),
        findings=FINDINGS[2:3],
        wrong=wrong,
        stored_bytes=8 * GIB,
        basis="from 2 receipts",
        dumped=dumped,
        kept=IMAGE if dumped else None,
    )


WEIGHTS_GONE = Finding(
    "gate-model", Severity.BLOCKER, "/hub/w", "/hub/w, weights of the job, is not here.", "Put it."
)
OTHER_HOST = Unchanged("node9", (WEIGHTS_GONE,), HostMismatch("no", findings=(WEIGHTS_GONE,)))
REHEARSED_DUMP = rehearse_result(dumped=dump_result(running=True))


def results() -> dict[str, object]:
    """What the flows that need no request answer, by their name."""
    job = Job(process(4711, 1), cuda_pids=(4711, 4712), gpu_bytes=12 * GIB)
    hostile = Job(
        process(99, 1, argv=("python", "-c", "\x1b[2J\nno such job")),
        cuda_pids=(99,),
        gpu_bytes=GIB,
    )
    trial = Trial("gpu", 4711, 6, 12, GIB, dump_result(), restore_result())
    return {
        "verify": verify_result(),
        "show": ShowResult(MANIFEST, IMAGE, ()),
        "compat": compat_result(),
        "jobs": (job, hostile),
        "doctor": DoctorResult(
            (
                Check("kernel", "ok", "6.18.5"),
                Check("persistence", "warning", "off on GPU 0", "nvidia-smi -pm 1"),
            )
        ),
        "demo": trial,
        "rehearse": rehearse_result(),
        "status": STATUS,
        "repair": RepairResult((Deed("its CUDA state is running again", 4711),), ()),
        "gc": GcResult((Removed("stage", "/ckpt/.x.stage-0123abcd", GIB),), (("/ckpt", "why"),)),
    }


STATUS = StatusResult((), (), (), (), (), (Path("/var/lib/gpuckpt/logs/x"),), returning=False)
ENTRY = Entry(
    id="20260714T030211Z-4711-0123abcd",
    operation="dump",
    started="2026-07-14T03:02:11Z",
    boot_id="b",
    owner=ProcessRef(99, 1),
    image=str(IMAGE),
    processes=(ProcessRef(4711, 1),),
    first={4711: CudaState.RUNNING},
    step="stream",
)
CUT_SHORT = replace(
    STATUS,
    unfinished=(
        Unfinished(
            ENTRY, (suspension(4711, CudaState.CHECKPOINTED, "python train.py", "Repair."),)
        ),
    ),
    job=(Member(process(4711, 1), "runs", CudaState.CHECKPOINTED),),
    returning=True,
)

SICK = DoctorResult(
    (
        Check("kernel", "ok", "6.18.5"),
        Check("criu", "failed", "CRIU was not found", "Run bin/install-criu."),
    )
)
