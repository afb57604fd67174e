"""A job of four ranks, real CRIU, and a driver whose calls meet or fail for one of them."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import CudaState
from tests.root.harness import exists, wait_for

if TYPE_CHECKING:
    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root

RUNNING = CudaState.RUNNING


def states(stage: Stage, pids: list[int]) -> list[CudaState]:
    return [stage.driver.state(pid) for pid in pids]


def test_every_step_is_taken_by_all_ranks_at_the_same_time(stage: Stage) -> None:
    """No call comes back before all four were made: one after the other would wait in vain."""
    launcher, ranks = stage.start_ranks(4)
    for pid in ranks:
        for action in ("lock", "checkpoint", "restore", "unlock"):
            stage.driver.fault(pid, action, meet=4)
    image = stage.place.folder / "image"
    dumped = stage.gpuckpt("dump", launcher.pid, "-o", image, "--lock-timeout", "60").result
    (lock,) = [one for one in dumped["receipt"]["phases"] if one["name"] == "lock"]
    assert lock["rounds"] == 1
    launcher.wait()
    wait_for("the pids are free", lambda: not any(map(exists, (launcher.pid, *ranks))))
    assert stage.actions() == ["lock"] * 4 + ["checkpoint"] * 4
    restored = stage.gpuckpt("restore", image, "--settle", "0.2").result
    stage.place.restored += restored["pids"]
    assert stage.actions()[8:] == ["restore"] * 4 + ["unlock"] * 4
    assert states(stage, ranks) == [RUNNING] * 4


def test_whatever_one_rank_meets_the_others_run_on(stage: Stage) -> None:
    """One is busy, then one is killed by the driver, then one under CRIU: the rest is whole."""
    launcher, ranks = stage.start_ranks(4)
    image = stage.place.folder / "image"
    stage.driver.fault(ranks[0], "lock", error="device not ready")
    busy = stage.gpuckpt("dump", launcher.pid, "-o", image, "--lock-timeout", "0.6")
    assert (busy.code, busy.error) == (5, "gpu_lock_timeout")
    assert f"could not hold process {ranks[0]} within 0.6 s" in busy.json["error"]["message"]
    assert "The others were held every time" in busy.json["error"]["hint"]
    assert states(stage, ranks) == [RUNNING] * 4
    victim, *ranks = ranks
    stage.driver.heal(victim, "lock")
    stage.driver.fault(victim, "checkpoint", kill=signal.SIGKILL)
    done = stage.gpuckpt("dump", launcher.pid, "-o", image)
    assert done.code == 10
    error = done.json["error"]
    told = {one["pid"]: (one["exists"], one["cuda"]) for one in error["processes"]}
    assert told[victim] == (False, None)
    assert {pid: told[pid] for pid in ranks} == dict.fromkeys(ranks, (True, "running"))
    assert f"process {victim} died during checkpoint" in error["message"]
    assert states(stage, ranks) == [RUNNING] * 3
    victim, *ranks = ranks
    dump = subprocess.Popen(
        stage.place.command("dump", launcher.pid, "-o", image, "--json"),
        env=os.environ | stage.driver.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    away = CudaState.CHECKPOINTED
    wait_for("all are parked", lambda: states(stage, [victim, *ranks]) == [away] * 3)
    os.kill(victim, signal.SIGKILL)
    story, _ = dump.communicate(timeout=120)
    assert dump.returncode in {4, 6, 10}, story
    assert f"process {victim}" in story or f"pid {victim}" in story, story
    assert states(stage, ranks) == [RUNNING] * 2
    assert not image.exists()
