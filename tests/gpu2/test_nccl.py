"""Ranks over NCCL on two GPUs: dumped and restored, held in a tight loop, refused, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.profiles import PROFILES
from gpuckpt.model import CudaState
from tests.gpu.service import check_generation
from tests.gpu.tables import table
from tests.gpu.tree import script, torchrun
from tests.root.harness import lines_of

if TYPE_CHECKING:
    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.stage import Stage
    from tests.gpu.tree import Tree

STEPS = 400
DUMPS = 20
PROFILE = ("--profile", "nccl")


def training(stage: Stage) -> Tree:
    """Start two ranks on two GPUs."""
    return stage.tree(torchrun(2, "ranks.py", stage.place(), STEPS, "nccl"), *PROFILE)


def test_torchrun_is_bitwise_equal(stage: Stage) -> None:
    """Restored at once on the same host: every loss of both ranks is as it would be."""
    stage.stays_bitwise_equal(training, 2, STEPS)


def test_a_tight_loop_of_collectives(stage: Stage) -> None:
    """Many dumps in a row, and every one finds a way."""
    argv = torchrun(2, "collective.py", stage.place(), "nccl")
    tree = stage.tree(argv, *PROFILE)
    tree.began(2)
    stage.dump_in_a_row(tree, DUMPS, "two ranks in a tight loop of all-reduces of 4 MiB")


def test_kernels_that_wait_for_each_other(stage: Stage) -> None:
    """The same with no NCCL, only flags in memory that all share."""
    tree = stage.tree(script("crew.py", stage.place(), 2, "flags.py", 2))
    tree.began(2)
    stage.dump_in_a_row(tree, DUMPS, "two processes whose kernels wait for each other")


def test_a_rank_that_is_killed_during_the_dump(stage: Stage, cuda: Cuda) -> None:
    """The other one, which now waits for ever, is brought back and told of."""
    tree = stage.tree(script("crew.py", stage.place(), 2, "collective.py", "nccl"), *PROFILE)
    tree.began(2)
    other, victim = map(int, lines_of(tree.folder / "crew.log")[0].split()[1:])
    stage.lose(tree, victim, [other], cuda)


def test_a_generation_server_of_two_ranks(stage: Stage) -> None:
    """Each rank has half of the model; sessions go on where they were."""
    check_generation(stage, 2, *PROFILE)


def test_the_defaults_are_refused(stage: Stage, cuda: Cuda) -> None:
    """With peer access the driver could never restore them: nothing is touched."""
    tree = stage.tree(torchrun(2, "collective.py", stage.place(), "nccl"))
    tree.began(2)
    for verb in ("plan", "dump"):
        assert stage.refused(tree, verb)["nccl"] == "blocker"
    pids = tree.cuda_pids()
    assert len(pids) >= 2
    assert set(cuda.states(pids).values()) == {CudaState.RUNNING}
    tree.goes_on()


def test_what_the_profile_costs(stage: Stage) -> None:
    """All-reduces under the profile, under each of its settings alone, and under none."""
    settings = dict(PROFILES["nccl"].environment)
    found: dict[str, list[float]] = {}
    sizes: list[int] = []
    alone = {name: {name: value} for name, value in settings.items() if "NVLS" not in name}
    for name, chosen in {"profile": settings, "defaults": {}, **alone}.items():
        tree = stage.tree(script("crew.py", stage.place(), 2, "bandwidth.py"), **chosen)
        tree.wait_for(tree.ended, f"all-reduces with {name} are measured")
        lines = [line.split() for line in tree.lines()["rank-0.log"] if line.startswith("size")]
        sizes = [int(line[1]) for line in lines]
        found[name] = [size / float(line[3]) / 1e9 for size, line in zip(sizes, lines, strict=True)]
        tree.end()
    rows = [
        (f"{size >> 20} MiB", *values) for size, *values in zip(sizes, *found.values(), strict=True)
    ]
    table("all-reduce of two ranks, GB/s", ("size", *found), rows)
    assert len(rows) == 5
