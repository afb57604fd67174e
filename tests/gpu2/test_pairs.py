"""Two GPUs: in one process, swapped, and side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuckpt.model import CudaState
from gpuckpt.tools.nvidia import Nvidia
from tests.gpu.tables import table
from tests.gpu.tree import script

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.job import Job
    from tests.gpu.stage import Stage
    from tests.gpu.tree import Tree

    Start = Callable[..., Job]

MIB = 1 << 20
SWAP = ("--gpu-map", "0=1,1=0")
GIB = 8


def used() -> tuple[int, int]:
    """Return how many MiB of GPU 0 and 1 are in use."""
    nvidia = Nvidia()
    facts = nvidia.facts()
    nvidia.close()
    assert facts is not None
    first, second = ((gpu.memory_total - gpu.memory_free) // MIB for gpu in facts.gpus[:2])
    return first, second


def grown(before: tuple[int, int]) -> tuple[int, int]:
    """Return how many MiB more are in use now."""
    now = used()
    return now[0] - before[0], now[1] - before[1]


def held_by(tree: Tree) -> tuple[int, int]:
    """Return how many MiB of GPU 0 and 1 a tree's processes hold."""
    nvidia = Nvidia()
    facts, uses = nvidia.facts(), nvidia.uses(tree.cuda_pids())
    nvidia.close()
    assert facts is not None
    first, second = (
        sum(use.bytes for use in uses if use.uuid == gpu.uuid) // MIB for gpu in facts.gpus[:2]
    )
    return first, second


def test_one_process_on_both_gpus(stage: Stage) -> None:
    """It comes back as it was, then with its GPUs swapped: the data moves, and is still right."""
    before = used()
    tree = stage.tree(script("pair.py", stage.place() / "pair.log"))
    tree.began(1)
    held = [("running", *grown(before))]
    stage.dump(tree)
    held.append(("dumped", *grown(before)))
    stage.restore(tree)
    tree.goes_on()
    held.append(("restored", *grown(before)))
    stage.drop()
    stage.dump(tree)
    result = stage.restore(tree, *SWAP)
    tree.goes_on()
    held.append(("swapped", *grown(before)))
    stage.drop()
    stage.dump(tree)
    stage.restore(tree)
    tree.goes_on()
    held.append(("restored again", *grown(before)))
    table("memory of a process on both GPUs", ("when", "GPU 0 MiB", "GPU 1 MiB"), held)
    assert sum(old != new for old, new in result["gpu_map"].items()) == 2
    running, dumped, restored, swapped, again = (one[1:] for one in held)
    assert max(dumped) < 300
    for first, second in (running, restored, swapped[::-1], again[::-1]):
        assert second - first > 500  # it holds 1 GiB of the first, 2 GiB of the second


def test_a_job_moves_to_the_other_gpu(stage: Stage) -> None:
    """Its process never sees more than one GPU in use, and then it is the other one."""
    tree = stage.tree(script("ballast.py", stage.place() / "ballast.log", 2))
    tree.began(1)
    first, second = held_by(tree)
    assert first > 2000
    assert second == 0
    stage.dump(tree)
    result = stage.restore(tree, *SWAP)
    assert "gpu-elsewhere" not in {one["id"] for one in result["findings"]}
    tree.goes_on()
    first, second = held_by(tree)
    assert first == 0
    assert second > 2000


def test_side_by_side_and_one_after_the_other(start: Start, cuda: Cuda) -> None:
    """What the driver's steps take for two processes on two GPUs, both ways."""
    jobs = [start("ballast.py", str(GIB), "0"), start("ballast.py", str(GIB), "1")]
    pids = [job.pid for job in jobs]
    cuda.open(dict.fromkeys(pids, CudaState.RUNNING))
    rows = []
    for how, groups in (("side by side", [pids]), ("in turn", [[pid] for pid in pids])):
        times = []
        for step in (
            lambda some: cuda.lock(some, 30),
            cuda.checkpoint,
            lambda some: cuda.restore(some, {}),
            cuda.unlock,
        ):
            begun = time.monotonic()
            for some in groups:
                step(some)
            times.append(time.monotonic() - begun)
        rows.append((how, *times))
        for job in jobs:
            job.counts_on(2)
    columns = ("how", "lock s", "checkpoint s", "restore s", "unlock s")
    table(f"2 x {GIB} GiB on two GPUs", columns, rows)
