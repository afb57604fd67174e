"""SIGKILL of the real gpuckpt, of its driver helpers and of CRIU as well, then `repair`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gpuckpt.model import CudaState
from tests.root.harness import exists, state_of, wait_for

if TYPE_CHECKING:
    from tests.root.fake_gpu import Stage
    from tests.root.harness import Field

pytestmark = pytest.mark.root

OURS = ("gpuckpt.tools.cuda_helper", "cuda-checkpoint", "/libexec/criu", "--action-script")


def start(place: Field, *args: object, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        place.command(*args),
        env=os.environ | env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_all(running: subprocess.Popen[bytes]) -> None:
    """SIGKILL gpuckpt and everything it has started, but for the tasks of the job."""
    below = psutil.Process(running.pid).children(recursive=True)
    ours = [one for one in below if any(word in " ".join(one.cmdline()) for word in OURS)]
    running.kill()
    for one in ours:
        one.kill()
    running.wait()


def left(place: Field, *args: object, **env: str) -> dict[str, Any]:
    """Return what `status` says is left, by id."""
    told = place.gpuckpt("status", *args, **env)
    assert (told.code, told.error) == (10, "unfinished")
    return {one["id"]: one for one in told.json["error"]["findings"]}


def repaired(stage: Stage) -> list[str]:
    """Repair, and see that nothing more is left: not in the journal, not on the disk."""
    told = stage.gpuckpt("repair").result
    assert told["left"] == []
    assert stage.gpuckpt("status").code == 0
    assert not list(stage.place.folder.glob(".*.stage-*"))
    state = Path(os.environ["GPUCKPT_STATE_DIR"])
    assert not list((state / "run").glob("*"))
    assert stage.gpuckpt("repair").result["done"] == []
    return [deed["text"] for deed in told["done"]]


def test_locked_and_nobody_left(stage: Stage) -> None:
    """Everything is killed with the job locked: status says so, a dump refuses, repair unlocks."""
    job, image = stage.start(), stage.place.folder / "image"
    stage.driver.fault(job.pid, "checkpoint", hold=True)
    dumping = start(stage.place, "dump", job.pid, "-o", image, **stage.driver.environ)
    wait_for("the checkpoint", lambda: "checkpoint" in stage.actions())
    assert stage.gpuckpt("dump", job.pid, "-o", image).error == "process_unfit"
    kill_all(dumping)
    stage.driver.heal(job.pid, "checkpoint")
    found = left(stage.place, **stage.driver.environ)
    assert found["left-locked"]["pid"] == job.pid
    assert "left-stage" in found
    assert stage.gpuckpt("dump", job.pid, "-o", image).error == "unfinished"
    dry = stage.gpuckpt("repair", "--dry-run").result
    assert dry["done"]
    assert stage.driver.state(job.pid) == CudaState.LOCKED
    assert "its CUDA state is running again" in repaired(stage)
    stage.counts_on()


def test_checkpointed_while_criu_streams(stage: Stage) -> None:
    """gpuckpt, its helpers and CRIU are killed: the job is parked, or stands without its GPU."""
    job, image = stage.start(mib=512), stage.place.folder / "image"
    dumping = start(stage.place, "dump", job.pid, "-o", image, **stage.driver.environ)
    pages = stage.place.folder
    wait_for("pages arrive", lambda: any(p.stat().st_size for p in pages.glob(".*/criu/pages-*")))
    kill_all(dumping)
    wait_for("the job is let go", lambda: state_of(job.pid) != "t")
    found = left(stage.place, **stage.driver.environ)
    assert {"left-parked", "left-checkpointed"} & set(found)
    assert not image.exists()
    repaired(stage)
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.counts_on()
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0


def test_a_dump_killed_when_its_job_is_not_back_yet(stage: Stage) -> None:
    """The image is written meanwhile; repair gives the job its state back and keeps the image."""
    job, image = stage.start(), stage.place.folder / "image"
    stage.driver.fault(job.pid, "restore", hold=True)
    more = ("-o", image, "--leave-running")
    dumping = start(stage.place, "dump", job.pid, *more, **stage.driver.environ)
    wait_for("the way back", lambda: "restore" in stage.actions())
    wait_for("the image", image.exists)
    kill_all(dumping)
    stage.driver.heal(job.pid, "restore")
    left(stage.place, job.pid, **stage.driver.environ)
    assert f"the image {image} is whole and was kept" in repaired(stage)
    stage.counts_on()
    assert stage.gpuckpt("verify", image).code == 0


def test_a_restore_killed_before_the_gpu_is_back(stage: Stage) -> None:
    """The tasks stand without their GPU: they are ended, and the image is restored again."""
    job, image = stage.start(), stage.place.folder / "image"
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0
    wait_for("the pid is free", lambda: not exists(job.pid))
    stage.driver.fault(job.pid, "restore", hold=True)
    stage.place.restored.append(job.pid)
    restoring = start(stage.place, "restore", image, **stage.driver.environ)
    wait_for("the way back", lambda: "restore" in stage.actions())
    kill_all(restoring)
    stage.driver.heal(job.pid, "restore")
    assert left(stage.place, **stage.driver.environ)["left-half-restored"]["pid"] == job.pid
    assert stage.gpuckpt("restore", image).error == "unfinished"
    assert "a half-restored task was ended" in repaired(stage)
    assert not exists(job.pid)
    assert stage.gpuckpt("restore", image, "--settle", "0").code == 0
    stage.counts_on()


def test_a_restore_killed_half_way_with_criu(stage: Stage) -> None:
    """Tasks whose memory is still being filled know themselves only by what CRIU runs in them."""
    argv = [sys.executable, "-c", "import os,time; m=os.urandom(1<<28); time.sleep(1000)"]
    job, image = stage.place.start(argv), stage.place.folder / "image"
    wait_for("it is large", lambda: psutil.Process(job.pid).memory_info().rss > 1 << 28)
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0
    wait_for("the pid is free", lambda: not exists(job.pid))
    stage.place.restored.append(job.pid)
    restoring = start(stage.place, "restore", image, **stage.driver.environ)
    wait_for("a task is made", lambda: exists(job.pid))
    kill_all(restoring)
    told = stage.gpuckpt("status")
    repaired(stage)
    # one that had ended with CRIU is nobody's child any more, and init may be slow to reap it
    wait_for(f"the task is gone: {told.stdout}", lambda: not exists(job.pid))
    assert stage.gpuckpt("restore", image, "--settle", "0").code == 0


def test_locked_by_somebody_else(stage: Stage) -> None:
    """Not ours: told, a dump refuses, and only a repair that names the process touches it."""
    job = stage.start()
    stage.driver.put(job.pid, CudaState.LOCKED, device=str(stage.device))
    assert left(stage.place, **stage.driver.environ)["left-locked"]["pid"] == job.pid
    told = stage.gpuckpt("status", job.pid).json["result"]["job"]
    assert [(one["pid"], one["cuda"]) for one in told] == [(job.pid, "locked")]
    assert stage.gpuckpt("dump", job.pid, "-o", stage.place.folder / "image").error == "blocked"
    assert stage.gpuckpt("repair").result["done"] == []
    assert stage.actions() == []
    assert stage.gpuckpt("repair", job.pid).result["left"] == []
    assert stage.driver.state(job.pid) == CudaState.RUNNING
    stage.driver.put(job.pid, CudaState.FAILED, device=str(stage.device))
    assert "left-failed" in left(stage.place, job.pid, **stage.driver.environ)
    assert stage.gpuckpt("repair", job.pid).error == "undo_incomplete"
