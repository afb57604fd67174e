"""Ranks that keep NCCL's peer-to-peer transports and let go of them for a dump."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

from gpuckpt.model import CudaState
from tests.gpu.job import wait
from tests.gpu.stage import phase
from tests.gpu.tables import table
from tests.gpu.tree import torchrun
from tests.root.harness import lines_of

if TYPE_CHECKING:
    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.stage import Stage
    from tests.gpu.tree import Tree

STEPS = 400
DUMPS = 5
PAGES = ".image.stage-*/criu/pages-*"


def training(stage: Stage) -> Tree:
    """Start two ranks on two GPUs, NCCL with its defaults but NVLS."""
    return stage.tree(torchrun(2, "cooperate_ranks.py", stage.place(), STEPS, "nccl"))


def times(tree: Tree) -> dict[str, list[float]]:
    """Return how long every `down` and `up` of each rank took."""
    found: dict[str, list[float]] = {"down": [], "up": []}
    for path in sorted(tree.folder.glob("times-*")):
        for line in lines_of(path):
            name, seconds = line.split()
            found[name].append(float(seconds))
    return found


def test_training_is_bitwise_equal_over_a_rest(stage: Stage) -> None:
    """Refused as it is, dumped at rest, restored: every loss of both ranks is as it would be."""
    undisturbed = training(stage)
    undisturbed.wait_for(undisturbed.ended, "the training ends")
    tree = training(stage)
    tree.began(2, STEPS // 4)
    assert stage.refused(tree)["nccl"] == "blocker"
    dumped = stage.dump(tree, "--quiesce").result
    assert len(dumped["quiesced"]) == 2
    assert max(tree.progress().values()) < STEPS * 3 // 4, "dumped too late to prove anything"
    restored = stage.restore(tree)
    tree.wait_for(tree.ended, "the training ends")
    assert tree.lines() == undisturbed.lines()
    assert len(tree.lines()) == 2
    rows = [("pause", dumped["pause"])]
    rows += [(one, phase(dumped, one)) for one in ("quiesce", "look again", "lock", "gpu-out")]
    rows += [(one, phase(dumped, one)) for one in ("stream", "commit")]
    rows += [(one, phase(restored, one)) for one in ("criu", "gpu-in", "resume")]
    rows += [(f"longest {name}", max(all_)) for name, all_ in times(tree).items()]
    table("two ranks with NCCL's defaults, dumped at rest", ("what", "s"), rows)


def test_many_rests_and_a_rehearsal(stage: Stage) -> None:
    """It goes on in place as often as one likes."""
    tree = training(stage)
    tree.began(2)
    rows = []
    for number in range(1, DUMPS + 1):
        result = stage.dump(tree, "--quiesce", "--leave-running").result
        assert not [one for one in result["findings"] if one["id"].startswith("rank-")]
        parts = ("quiesce", "lock", "gpu-out", "stream", "gpu-in", "resume")
        rows.append((number, *(phase(result, part) for part in parts), result["pause"]))
        stage.drop()
        tree.goes_on(2)
    columns = ("dump", "quiesce s", "lock s", "gpu-out s", "stream s", "gpu-in s", "resume s")
    table("brought to rest and left running", (*columns, "pause s"), rows)
    answer = stage.operator.gpuckpt("rehearse", tree.pid, "--quiesce")
    assert answer.code == 0, f"{answer.stdout}\n{answer.stderr}\n{tree.tail()}"
    tree.goes_on(2)


def test_killed_while_the_ranks_are_at_rest(stage: Stage, cuda: Cuda) -> None:
    """With the GPU state away and gpuckpt dead the ranks wait, and a repair lets them go on."""
    tree = training(stage)
    tree.began(2)
    pids = tree.cuda_pids()
    argv = stage.operator.command("dump", tree.pid, "-o", stage.image, "--quiesce")
    dumping = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(
            lambda: any(page.stat().st_size for page in stage.folder.glob(PAGES)),
            "pages have arrived",
            lambda: "" if dumping.poll() is None else "gpuckpt ended",
        )
    finally:
        dumping.send_signal(signal.SIGKILL)
        dumping.wait()
    wait(
        lambda: set(cuda.states(pids).values()) == {CudaState.RUNNING},
        "the helpers have brought the GPU state back",
    )
    status = stage.operator.gpuckpt("status", tree.pid)
    assert status.code == 10, status.stdout
    repaired = stage.operator.gpuckpt("repair")
    assert repaired.code == 0, f"{repaired.stdout}\n{repaired.stderr}\n{tree.tail()}"
    tree.wait_for(tree.ended, "the training ends")
