"""A whole dump and restore with real CRIU, real call processes, and a driver that is a stand-in.

The job looks as if it used a GPU: it holds a device file until the driver checkpoints it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import CudaState
from tests.root.harness import exists, wait_for

if TYPE_CHECKING:
    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root


def test_there_and_back(stage: Stage) -> None:
    """The copy of what was on the GPU is proved with the rest of the job's memory."""
    job = stage.start(1, "env", "GPU_JOB_MEMORY=4")
    image = stage.place.folder / "image"
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0
    job.wait()
    wait_for("the pid is free", lambda: not exists(job.pid))
    assert stage.actions() == ["lock", "checkpoint"]
    result = stage.gpuckpt("restore", image, "--settle", "0.2", "--prove").result
    stage.place.restored += result["pids"]
    assert result["proved"]["bytes"] > 5 << 20
    assert stage.actions() == ["lock", "checkpoint", "restore", "unlock"]
    stage.counts_on()


def test_the_job_may_go_on_after_the_dump(stage: Stage) -> None:
    job = stage.start()
    image = stage.place.folder / "image"
    assert stage.gpuckpt("dump", job.pid, "-o", image, "--leave-running").code == 0
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()


@pytest.mark.parametrize(
    ("action", "words", "error"),
    [
        ("lock", "device not ready", "gpu_lock_timeout"),
        ("checkpoint", "operation not supported", "gpu_step_failed"),
        ("checkpoint", "out of memory", "gpu_step_failed"),
    ],
)
def test_a_refusing_driver_leaves_the_job_running(
    stage: Stage, action: str, words: str, error: str
) -> None:
    job = stage.start()
    stage.driver.fault(job.pid, action, error=words)
    image = stage.place.folder / "image"
    done = stage.gpuckpt("dump", job.pid, "-o", image, "--lock-timeout", "0.5")
    assert (done.error, done.code) == (error, 5)
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()
    assert not image.exists()


def test_a_job_that_the_driver_killed_is_not_called_running(stage: Stage) -> None:
    job = stage.start()
    stage.driver.fault(job.pid, "lock", kill=signal.SIGKILL)
    done = stage.gpuckpt("dump", job.pid, "-o", stage.place.folder / "image")
    assert (done.code, done.error) == (10, "process_lost")
    error = done.json["error"]
    assert f"process {job.pid} died during lock" in error["message"]
    assert [(one["pid"], one["exists"]) for one in error["processes"]] == [(job.pid, False)]


@pytest.mark.parametrize("state", [CudaState.LOCKED, CudaState.CHECKPOINTED])
def test_a_job_that_somebody_else_suspended_is_refused(stage: Stage, state: CudaState) -> None:
    """Its image would be restored suspended, and nobody would know; the driver is not touched."""
    job = stage.start()
    stage.driver.put(job.pid, state, device=str(stage.device))
    done = stage.gpuckpt("dump", job.pid, "-o", stage.place.folder / "image")
    assert (done.code, done.error) == (4, "blocked")
    assert "gpu-suspended" in [finding["id"] for finding in done.json["error"]["findings"]]
    assert stage.actions() == []


def start_dump(stage: Stage, job: subprocess.Popen[bytes]) -> subprocess.Popen[str]:
    image = stage.place.folder / "image"
    return subprocess.Popen(
        stage.place.command("dump", job.pid, "-o", image),
        env=os.environ | stage.driver.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return "TracerPid:\t0\n" not in status


def kill_and_recover(
    stage: Stage, job: subprocess.Popen[bytes], dump: subprocess.Popen[str]
) -> None:
    """Kill a dump, see the job come back by itself, and see that it can be dumped again."""
    dump.kill()
    dump.communicate()
    for action in ("checkpoint", "restore"):
        if (stage.driver.folder / f"{job.pid}.{action}.fault").exists():
            stage.driver.heal(job.pid, action)
    wait_for("the job runs", lambda: stage.driver.state(job.pid) == CudaState.RUNNING)
    stage.counts_on()
    again = stage.place.folder / "again"
    assert stage.gpuckpt("dump", job.pid, "-o", again, "--leave-running").code == 0
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()


def test_gpuckpt_killed_while_the_driver_copies(stage: Stage) -> None:
    job = stage.start()
    stage.driver.fault(job.pid, "checkpoint", hold=True)
    dump = start_dump(stage, job)
    wait_for("the checkpoint", lambda: "checkpoint" in stage.actions())
    kill_and_recover(stage, job, dump)


def test_gpuckpt_killed_while_criu_dumps(stage: Stage) -> None:
    job = stage.start(mib=512)
    dump = start_dump(stage, job)
    wait_for("CRIU at work", lambda: traced(job.pid))
    kill_and_recover(stage, job, dump)


@pytest.mark.parametrize("victim", ["gpuckpt", "criu"])
def test_stopped_while_criu_dumps(stage: Stage, victim: str) -> None:
    """CRIU had woken the parked job to work in it; the way back must cope with that."""
    job = stage.start(mib=512)
    dump = start_dump(stage, job)
    pages = stage.place.folder
    wait_for("pages arrive", lambda: any(p.stat().st_size for p in pages.glob(".*/criu/pages-*")))
    if victim == "gpuckpt":
        dump.send_signal(signal.SIGINT)
    else:
        os.kill(tracer_of(job.pid), signal.SIGKILL)
    _, story = dump.communicate(timeout=120)
    assert dump.returncode == (130 if victim == "gpuckpt" else 6), story
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()
    image = stage.place.folder / "again"
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0


def tracer_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))
