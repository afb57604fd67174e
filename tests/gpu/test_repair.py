"""SIGKILL of gpuckpt with the job's GPU state away, then `repair`: as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gpuckpt.model import CudaState
from gpuckpt.tools.cuda_driver import load_bindings
from tests.gpu.job import wait
from tests.root.harness import Field

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gpu.job import Job

    Start = Callable[..., Job]

TRAINING_STEPS = 400
OURS = ("gpuckpt.tools.cuda_helper", "/libexec/criu", "--action-script")


@pytest.fixture
def operator(tmp_path: Path) -> Field:
    """Give somebody who runs gpuckpt."""
    return Field(tmp_path)


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}


def _kill(dumping: subprocess.Popen[bytes], *, helpers: bool) -> None:
    """End gpuckpt, and with it those that would lead the job back by themselves."""
    below = psutil.Process(dumping.pid).children(recursive=True)
    ours = [one for one in below if any(word in " ".join(one.cmdline()) for word in OURS)]
    dumping.send_signal(signal.SIGKILL)
    if helpers:
        for one in ours:
            one.kill()
    dumping.wait()


@pytest.mark.parametrize("helpers", [False, True], ids=["gpuckpt alone", "helpers too"])
def test_training_is_bitwise_equal_after_a_repair(
    start: Start, operator: Field, *, helpers: bool
) -> None:
    """The job is stopped with its state away; whoever leads it back, it trains on as it would."""
    undisturbed = start("train.py", str(TRAINING_STEPS), first="end").lines()
    job = start("train.py", str(TRAINING_STEPS), first="step 0 " + undisturbed[0].split(" ", 2)[2])
    wait(lambda: len(job.lines()) > TRAINING_STEPS // 4, "a quarter of the steps")
    image = operator.folder / "image"
    dumping = subprocess.Popen(
        operator.command("dump", job.pid, "-o", image, "--leave-running"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait(
        lambda: _stopped(job.pid),
        "the job is parked",
        lambda: "" if dumping.poll() is None else "over",
    )
    _kill(dumping, helpers=helpers)
    told = operator.gpuckpt("status", job.pid)
    print(f"\nstatus: {told.stdout}")
    if helpers:
        assert told.error == "unfinished"
        again = operator.gpuckpt("dump", job.pid, "-o", operator.folder / "again")
        assert (again.code, again.error) == (10, "unfinished")
    result = operator.gpuckpt("repair").result
    print(f"repair: {result}")
    assert result["left"] == []
    assert operator.gpuckpt("status").code == 0
    wait(lambda: "end" in job.lines(), "the training ends")
    assert job.lines() == undisturbed


def test_suspended_by_hand(start: Start, operator: Field) -> None:
    """Somebody else's tool has done it: told, refused, brought back only when named."""
    job, driver = start(), load_bindings()
    for state in (CudaState.LOCKED, CudaState.CHECKPOINTED):
        driver.lock(job.pid, 30_000)
        if state is CudaState.CHECKPOINTED:
            driver.checkpoint(job.pid)
        told = operator.gpuckpt("status")
        assert told.error == "unfinished"
        found = {one["id"]: one["pid"] for one in told.json["error"]["findings"]}
        assert found[f"left-{state}"] == job.pid
        dumped = operator.gpuckpt("dump", job.pid, "-o", operator.folder / "image")
        assert dumped.error == "blocked"
        assert operator.gpuckpt("repair").result["done"] == []
        assert operator.gpuckpt("repair", job.pid).result["left"] == []
        job.counts_on()
