"""The whole way on a real GPU: dumped, gone, restored, and bit for bit the same job."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt import demo_job
from gpuckpt.model import CudaState
from gpuckpt.tools.nvidia import Nvidia
from gpuckpt.tools.proc import Proc
from tests.gpu.job import end_restored, wait
from tests.root.harness import Field, exists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.job import Job

    Start = Callable[..., Job]

TRAINING_STEPS = 400
BIN = Path(__file__).parent.parent.parent / "bin"


@pytest.fixture
def operator(tmp_path: Path) -> Field:
    """Give somebody who runs gpuckpt."""
    return Field(tmp_path)


@pytest.fixture
def bring_back(operator: Field) -> Iterator[Callable[..., int]]:
    """Restore images; the restored jobs are ended politely, or suspended before they are killed."""
    running: list[int] = []

    def restore(image: Path, *args: object) -> int:
        result = operator.gpuckpt("restore", image, *args).result
        running.append(result["root_pid"])
        _tell("restore", result)
        return int(result["root_pid"])

    yield restore
    for pid in running:
        end_restored(pid)


def dump(operator: Field, job: Job, *args: object) -> Path:
    """Dump a job that must go, and see that it is gone from the host and from the GPU."""
    image = operator.folder / "image"
    result = operator.gpuckpt("dump", job.pid, "-o", image, *args).result
    _tell("dump", result)
    if not result["running"]:
        job.child.wait(60)
        wait(lambda: not exists(job.pid), f"pid {job.pid} is free")
        assert Nvidia().uses([job.pid]) == ()
    return image


def _tell(verb: str, result: dict[str, object]) -> None:
    """Print the phases, so that a run's log holds its numbers."""
    receipt = result["receipt"]
    assert isinstance(receipt, dict)
    phases = ", ".join(f"{phase['name']} {phase['seconds']:.2f}" for phase in receipt["phases"])
    pause = f", pause {result['pause']:.2f}" if "pause" in result else ""
    totals = f", {result['totals']}" if "totals" in result else ""
    proved = f", proved {result['proved']}" if result.get("proved") else ""
    print(f"\n{verb}: {receipt['seconds']:.2f} s{pause}: {phases}{totals}{proved}")


def test_the_demo_job_counts_on(
    start: Start, operator: Field, bring_back: Callable[..., int]
) -> None:
    """The simplest: one process, a few MiB on the GPU, every tick computed from the last."""
    job = start()
    image = dump(operator, job)
    before = job.ticks()
    assert bring_back(image) == job.pid
    wait(lambda: job.ticks() > before + 5, "it counts on")
    assert demo_job.faults(job.log) == ()


def test_leave_running_then_restore_later(
    start: Start, operator: Field, bring_back: Callable[..., int]
) -> None:
    """The job goes on beside its image; once it has ended the image still brings it back."""
    job = start()
    image = dump(operator, job, "--leave-running")
    job.counts_on()
    assert demo_job.faults(job.log) == ()
    job.end()
    bring_back(image)


def test_training_is_bitwise_equal(
    start: Start, operator: Field, bring_back: Callable[..., int]
) -> None:
    """Losses, weights, optimizer and random numbers: as if nothing had happened."""
    undisturbed = start("train.py", str(TRAINING_STEPS), first="end").lines()
    job = start("train.py", str(TRAINING_STEPS), first="step 0 " + undisturbed[0].split(" ", 2)[2])
    wait(lambda: len(job.lines()) > TRAINING_STEPS // 4, "a quarter of the steps")
    image = dump(operator, job)
    assert len(job.lines()) < TRAINING_STEPS * 3 // 4, "dumped too late to prove anything"
    bring_back(image, "--settle", "0", "--prove")
    wait(lambda: "end" in job.lines(), "the training ends")
    assert job.lines() == undisturbed
    assert [line.split()[0] for line in undisturbed[-4:]] == ["weights", "optimizer", "rng", "end"]


def test_sixteen_gibibytes(start: Start, operator: Field, bring_back: Callable[..., int]) -> None:
    """A large state: every MiB of 16 GiB holds what it held."""
    job = start("ballast.py", "16")
    image = dump(operator, job)
    before = job.ticks()
    bring_back(image, "--prove")
    wait(lambda: job.ticks() > before + 3, "it counts on")
    assert not [line for line in job.lines() if line.startswith("failed")]
    assert operator.gpuckpt("verify", image).code == 0
    print(f"peak memory of gpuckpt: {operator.peak >> 20} MiB")
    assert operator.peak < 400 << 20


def test_cuda_graphs(start: Start, operator: Field, bring_back: Callable[..., int]) -> None:
    """A captured graph replays as before."""
    job = start("graphs.py")
    image = dump(operator, job)
    before = job.ticks()
    bring_back(image)
    wait(lambda: job.ticks() > before + 5, "it replays on")
    assert not [line for line in job.lines() if line.startswith("failed")]


@pytest.mark.parametrize("leave_running", [True, False])
def test_threads_that_poll_the_gpu_all_the_time(
    start: Start, operator: Field, bring_back: Callable[..., int], *, leave_running: bool
) -> None:
    """Their calls pass the driver's lock and would crash the job while its state is away."""
    job = start("poller.py")
    image = dump(operator, job, *(["--leave-running"] if leave_running else []))
    if leave_running:
        job.counts_on()
        return
    before = job.ticks()
    bring_back(image)
    wait(lambda: job.ticks() > before + 5, "it counts on")
    assert not [line for line in job.lines() if line.startswith("failed")]


def test_managed_memory_is_refused(start: Start, operator: Field, cuda: Cuda) -> None:
    """The plan sees it; else the driver refuses after the lock, and everything is put back."""
    job = start("managed.py")
    answer = operator.gpuckpt("dump", job.pid, "-o", operator.folder / "image")
    assert answer.error == "blocked"
    assert [one["id"] for one in answer.json["error"]["findings"]] == ["managed-memory"]
    answer = operator.gpuckpt(
        "dump", job.pid, "-o", operator.folder / "image", "--ignore", "managed-memory"
    )
    assert answer.code == 5
    assert "Managed" in answer.json["error"]["hint"]
    assert cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}
    job.counts_on()
    assert not (operator.folder / "image").exists()


def test_a_long_kernel_times_out(start: Start, operator: Field, cuda: Cuda) -> None:
    """The lock gives up, and the job never notices."""
    job = start("spin.py", "20", first="spinning")
    answer = operator.gpuckpt(
        "dump", job.pid, "-o", operator.folder / "image", "--lock-timeout", "2"
    )
    assert (answer.code, answer.error) == (5, "gpu_lock_timeout")
    assert "done" not in job.lines(), "the kernel had ended: this proves nothing"
    assert cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}
    job.await_line("done")
    job.counts_on()
    dump(operator, job)


@pytest.mark.parametrize(
    ("victim", "signum", "status"),
    [
        ("gpuckpt", signal.SIGINT, 128 + signal.SIGINT),
        ("gpuckpt", signal.SIGKILL, -signal.SIGKILL),
        ("criu", signal.SIGKILL, 6),
    ],
)
def test_stopped_while_the_memory_streams(
    start: Start,
    operator: Field,
    cuda: Cuda,
    *,
    victim: str,
    signum: signal.Signals,
    status: int,
) -> None:
    """Ctrl-C undoes; after SIGKILL the driver's helper does; the next dump works."""
    job = start("ballast.py", "4")
    image = operator.folder / "image"
    dumping = subprocess.Popen(
        operator.command("dump", job.pid, "-o", image), stderr=subprocess.PIPE, text=True
    )
    streaming = "pages have arrived in the stage"
    wait(lambda: any(p.stat().st_size for p in _pages(operator.folder)), streaming)
    os.kill(dumping.pid if victim == "gpuckpt" else _tracer(job.pid), signum)
    _, story = dumping.communicate(timeout=300)
    assert dumping.returncode == status, story
    # a process that is parked cannot be asked: it is on its way back
    wait(lambda: not _stopped(job.pid), "on its way back")
    wait(lambda: cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}, "back to running")
    job.counts_on()
    assert not image.exists()
    dump(operator, job)


def _tracer(pid: int) -> int:
    process = Proc().process(pid)
    assert process is not None
    assert process.tracer
    return process.tracer


def _stopped(pid: int) -> bool:
    process = Proc().process(pid)
    return process is not None and process.state in {"t", "T"}


def _pages(folder: Path) -> list[Path]:
    return list(folder.glob(".image.stage-*/criu/pages-*"))


def test_a_failed_probe_kills_without_harm(start: Start, operator: Field) -> None:
    """`--on-verify-fail kill` suspends the restored job before it ends it; nothing is left."""
    job = start()
    image = dump(operator, job)
    answer = operator.gpuckpt(
        "restore", image, "--probe", "false", "--probe-timeout", "1", "--on-verify-fail", "kill"
    )
    assert answer.code == 11
    assert not exists(job.pid)
    assert Proc().taken([job.pid]) == ()


def test_a_node_is_drained_and_comes_back(start: Start, operator: Field) -> None:
    """The runbook's two commands: every GPU job of this node goes, and comes back."""
    jobs = [start(), start()]
    images = operator.folder / "images"
    images.mkdir()
    drained = script("gpuckpt-drain", images)
    assert drained.splitlines()[-1] == "summary: 2 dumped, 0 failed, 0 skipped"
    for job in jobs:
        job.child.wait(60)
        wait(lambda pid=job.pid: not exists(pid), f"pid {job.pid} is free")
    before = [job.ticks() for job in jobs]
    print(drained, script("gpuckpt-return", images))
    for job, ticks in zip(jobs, before, strict=True):
        wait(lambda job=job, ticks=ticks: job.ticks() > ticks + 5, "it counts on")
        assert demo_job.faults(job.log) == ()
        os.kill(job.pid, signal.SIGTERM)
        wait(lambda pid=job.pid: not exists(pid), f"end of restored process {job.pid}")


def script(name: str, folder: Path) -> str:
    """Run one of the runbook scripts, which must succeed."""
    command = [str(BIN / name), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_the_demo_command(operator: Field) -> None:
    """What a newcomer types first."""
    answer = operator.gpuckpt("demo")
    assert answer.code == 0, answer.stderr
    print(answer.stdout)


def test_the_doctor(operator: Field) -> None:
    """A healthy GPU host has no failed check."""
    answer = operator.gpuckpt("doctor")
    print(answer.stdout)
    assert answer.code == 0, answer.stderr
