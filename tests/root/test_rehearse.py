"""Rehearsals with real CRIU and real call processes; terminals and signals that come in between."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import CudaState
from tests.root.harness import PATIENCE, wait_for

if TYPE_CHECKING:
    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root

ROUND = ["lock", "checkpoint", "restore", "unlock"]


def test_in_place_and_with_a_dump(stage: Stage) -> None:
    """One job, both ways: it counts on, nothing is left of either, the numbers are told."""
    job = stage.start()
    seen = stage.gpuckpt("rehearse", job.pid, "--stay", "0.3", "--settle", "0.2").result
    assert stage.actions() == ROUND
    assert seen["pause"] >= 0.3
    assert (seen["wrong"], seen["moved_before"], seen["moves_now"]) == ([], True, True)
    assert (seen["totals"], seen["image"]) == (None, None)
    stage.counts_on()
    scratch = stage.place.folder / "scratch"
    args = ("--dump", "-o", scratch, "--settle", "0.2")
    seen = stage.gpuckpt("rehearse", job.pid, *args).result
    assert stage.actions() == [*ROUND, *ROUND]
    assert seen["totals"]["raw"] > seen["totals"]["stored"] > 0
    assert (seen["wrong"], seen["image"]) == ([], None)
    assert not scratch.exists()
    assert not list(stage.place.folder.glob(".*stage*"))
    stage.counts_on()


def test_a_round_trip_proves_the_gpu_memory(stage: Stage) -> None:
    """What the driver copies out twice is the same, or is named; the job goes on either way."""
    job = stage.start(1, "env", "GPU_JOB_MEMORY=4")
    turn = ["lock", "checkpoint", "restore", "checkpoint", "restore", "unlock"]
    seen = stage.gpuckpt("rehearse", job.pid, "--prove", "--settle", "0.2").result
    assert stage.actions() == turn
    assert seen["proved"]["bytes"] >= 4 << 20
    assert seen["wrong"] == []
    stage.counts_on()
    stage.driver.fault(job.pid, "restore", flip=3 << 20)
    done = stage.gpuckpt("rehearse", job.pid, "--prove", "--settle", "0.2")
    assert (done.code, done.error) == (11, "rehearsal_failed")
    (found,) = done.json["error"]["findings"]
    assert (found["id"], found["pid"]) == ("gpu-bytes-differ", job.pid)
    assert "pieces of 512 KiB" in found["reason"]
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()


def test_a_job_without_a_gpu(stage: Stage) -> None:
    """Refused in place with the offer to dump, which works and can be restored if it is kept."""
    job = stage.start()
    (stage.driver.folder / str(job.pid)).unlink()
    os.kill(job.pid, signal.SIGUSR1)  # lets go of its device
    done = stage.gpuckpt("rehearse", job.pid)
    assert (done.code, done.error) == (4, "nothing_to_rehearse")
    assert "--dump" in done.json["error"]["hint"]
    scratch = stage.place.folder / "scratch"
    seen = stage.gpuckpt("rehearse", job.pid, "--dump", "--keep", "-o", scratch).result
    assert seen["image"] == str(scratch)
    assert stage.gpuckpt("verify", scratch).code == 0


def test_a_driver_that_fails_on_the_way_back(stage: Stage) -> None:
    """The job stays suspended, nobody ends it; once the cause is gone a repair brings it back."""
    job = stage.start()
    stage.driver.fault(job.pid, "restore", error="operation not permitted")
    done = stage.gpuckpt("rehearse", job.pid)
    assert done.code == 10
    assert stage.driver.state(job.pid) == CudaState.CHECKPOINTED
    assert stage.gpuckpt("rehearse", job.pid).error == "unfinished"
    stage.driver.heal(job.pid, "restore")
    assert stage.gpuckpt("repair", job.pid).code == 0
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()


def on_a_terminal(stage: Stage, *args: object, deaf: bool = False) -> tuple[int, subprocess.Popen]:
    """Run gpuckpt in a session of its own on a new terminal; return our end of it."""
    ours, theirs = pty.openpty()
    argv = ["setsid", "--ctty", *stage.place.command(*args)]
    if deaf:
        argv = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *argv]
    child = subprocess.Popen(
        argv,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | stage.driver.environ | {"TERM": "xterm"},
    )
    os.close(theirs)
    return ours, child


def pages(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(".*/criu/pages-*"))


@pytest.mark.parametrize("deaf", [False, True], ids=["ssh", "nohup"])
def test_the_terminal_goes_away_in_mid_dump(stage: Stage, *, deaf: bool) -> None:
    """A hang-up undoes the dump; where it is ignored, a lost terminal alone ends nothing."""
    job = stage.start(mib=512)
    image = stage.place.folder / "image"
    ours, dump = on_a_terminal(stage, "dump", job.pid, "-o", image, "--leave-running", deaf=deaf)
    wait_for("pages arrive", lambda: pages(stage.place.folder))
    os.close(ours)
    # 1: it is done, and nobody was there to be told
    assert dump.wait(PATIENCE) == (1 if deaf else 128 + signal.SIGHUP)
    assert image.exists() is deaf
    (kept,) = Path(os.environ["GPUCKPT_STATE_DIR"]).glob("report-dump-*")
    assert ("dumped, and the job goes on" if deaf else "interrupted by SIGHUP") in kept.read_text()
    assert not list(stage.place.folder.glob(".*stage*"))
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()


def test_a_second_signal_tells_what_would_be_left(stage: Stage) -> None:
    """The undo hangs in the driver: the operator asks again and is answered; it ends well."""
    job = stage.start()
    stage.driver.fault(job.pid, "restore", hold=True)
    args = stage.place.command("rehearse", job.pid, "--stay", "60")
    env = os.environ | stage.driver.environ
    child = subprocess.Popen(args, env=env, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        told = iter(child.stderr.readline, "")
        assert any(line.startswith("gpuckpt: stay: begins") for line in told)
        child.send_signal(signal.SIGINT)
        wait_for("the way back", lambda: "restore" in stage.actions())
        child.send_signal(signal.SIGTERM)
        answer = next(line for line in told if "SIGTERM again" in line)
        assert "GPU state is not back; the job does not run; driver helpers are left" in answer
    finally:
        stage.driver.heal(job.pid, "restore")
    story = child.stderr.read()
    child.stderr.close()
    assert child.wait(PATIENCE) == 128 + signal.SIGINT, story
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()
