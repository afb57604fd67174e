"""What the driver makes of maps of GPUs, and of processes that see one of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import CudaCallFailed
from gpuckpt.image.sealed import decode
from gpuckpt.model import CudaState
from gpuckpt.tools.nvidia import Nvidia
from tests.gpu.tables import table
from tests.gpu.tree import script

if TYPE_CHECKING:
    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.stage import Stage
    from tests.gpu.tree import Tree


def uuids() -> tuple[str, ...]:
    nvidia = Nvidia()
    facts = nvidia.facts()
    nvidia.close()
    assert facts is not None
    columns = ("GPU", "NUMA", "NVLinks", "paths", "bus id")
    rows = [(gpu.index, gpu.numa, gpu.nvlinks, gpu.paths, gpu.bus_id) for gpu in facts.gpus]
    table("what NVML tells of the GPUs", columns, rows)
    return tuple(gpu.uuid for gpu in facts.gpus)


def on_gpu(pid: int) -> set[str]:
    """Return the GPUs that NVML shows a process on."""
    nvidia = Nvidia()
    found = {use.uuid for use in nvidia.uses([pid])}
    nvidia.close()
    return found


def masked(stage: Stage, visible: str) -> Tree:
    """Start a job that holds 1 GiB of the only GPU it sees."""
    tree = stage.tree(
        script("ballast.py", stage.place() / "ballast.log", 1), CUDA_VISIBLE_DEVICES=visible
    )
    tree.began(1)
    return tree


def test_maps_for_a_process_that_sees_one_gpu(stage: Stage, cuda: Cuda) -> None:
    """Some maps may be refused: then nothing has changed, and the whole one is taken."""
    first, second = uuids()[:2]
    tree = masked(stage, "1")
    (pid,) = tree.cuda_pids()
    assert on_gpu(pid) == {second}
    cuda.open({pid: CudaState.RUNNING})
    rows = []
    for name, pairs in (
        ("1=1 alone", {second: second}),
        ("1=0 alone", {second: first}),
        ("0=1 alone", {first: second}),
        ("0=0,1=1", {first: first, second: second}),
        ("0=1,1=0", {first: second, second: first}),
    ):
        cuda.lock([pid], 30)
        cuda.checkpoint([pid])
        said = "done"
        try:
            cuda.restore([pid], pairs)
        except CudaCallFailed as why:
            (outcome,) = why.failed
            assert outcome.after is CudaState.CHECKPOINTED, outcome.text
            said = outcome.error
            cuda.restore([pid], {})
        cuda.unlock([pid])
        tree.goes_on()
        here = ", ".join(str((first, second).index(one)) for one in sorted(on_gpu(pid)))
        rows.append((name, said, here))
        if on_gpu(pid) == {first}:  # whatever was asked brought it there: back again
            cuda.lock([pid], 30)
            cuda.checkpoint([pid])
            cuda.restore([pid], {first: second, second: first})
            cuda.unlock([pid])
            tree.goes_on()
    table("maps for a process that sees GPU 1 only", ("map", "answer", "then on GPU"), rows)
    assert rows[-1][1:] == ("done", "0")


def test_a_job_that_sees_one_gpu_moves_to_the_other(stage: Stage) -> None:
    """The image says which it saw; a part of the map is enough for us."""
    first, second = uuids()[:2]
    tree = masked(stage, second)
    stage.dump(tree)
    manifest = decode((stage.image / "manifest.json").read_bytes())
    (pid,) = manifest.cuda
    assert [one.visible for one in manifest.tree if one.pid == pid] == [(second,)]
    result = stage.restore(tree, "--gpu-map", "1=0")
    tree.goes_on()
    assert result["gpu_map"] == {first: second, second: first}
    assert on_gpu(pid) == {first}
    assert "gpu-elsewhere" not in [one["id"] for one in result["findings"]]
    # without a map it stays where it is now, in place and from an image
    stage.drop()
    stage.dump(tree, "--leave-running")
    tree.goes_on()
    assert on_gpu(pid) == {first}
    stage.drop()
    stage.dump(tree)
    stage.restore(tree)
    tree.goes_on()
    assert on_gpu(pid) == {first}
