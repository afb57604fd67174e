"""GPUs on pages: who uses which, and where those of an image go, at 80 columns."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gpuckpt import errors
from gpuckpt.cli import failure, plan, show
from gpuckpt.flow.outlook import Row
from gpuckpt.flow.show import ShowResult
from gpuckpt.image.gpuplan import gpu_plan
from gpuckpt.model import GpuUse
from tests import gpu_samples, plan_samples
from tests.cli import samples
from tests.cli.test_look import drawn
from tests.gpu_samples import uuid


def test_eight_ranks_are_a_line_each_with_their_gpus() -> None:
    """Their launcher too, also where everything is as wide as it gets."""
    launcher = Row(
        plan_samples.process(4194303, argv=("/opt/venv/bin/torchrun", "train.py")),
        "CUDA",
        (GpuUse(4194303, uuid("a", 0), 512 << 20),),
        (0,),
    )
    argv = ("/opt/venv/bin/python3", "-u", "train.py", "--config", "large.yaml")
    ranks = [
        Row(
            plan_samples.process(4194200 + number, 4194303, argv=argv),
            "CUDA",
            (GpuUse(4194200 + number, uuid("a", number), 100 * samples.GIB + (1 << 29)),),
            (number,),
        )
        for number in range(8)
    ]
    both = GpuUse(9, uuid("a", 1), samples.GIB), GpuUse(9, uuid("a", 2), samples.GIB)
    pair = Row(plan_samples.process(9), "CUDA", both, (1, 2))
    seen = replace(samples.outlook(), rows=(launcher, *ranks, pair))
    lines = drawn(plan.outcome(seen).page, 80)[2:13]
    assert [line.split()[2:6] for line in lines[2:10]] == [
        [str(number), f"00aa{number:04x}", "100.5", "GiB"] for number in range(8)
    ]
    assert all("python3 -u train.py" in line for line in lines[2:10])
    assert lines[10].split()[:5] == ["9", "CUDA", "1,2", "2.0", "GiB"]


def test_an_image_tells_who_used_which_gpu_and_what_it_could_see() -> None:
    job = gpu_samples.image(gpu_samples.switched("a"), gpu_samples.ranks(8), visible={3: (3,)})
    manifest = msgspec.structs.replace(samples.MANIFEST, nvidia=job.nvidia, tree=job.tree)
    lines = drawn(show.outcome(ShowResult(manifest, samples.IMAGE, ())).page, 80)
    assert all(len(line) <= 80 for line in lines if "next:" not in line)
    table = [line.split() for line in lines if "GPU-00aa" in line]
    assert " ".join(table[3]) == "3 GPU-00aa0003 1003 10.0 GiB NVIDIA H200 1 of 8"
    assert table[4][-1] == "all"
    assert any("8 x NVIDIA H200, each with NVLink to all others" in line for line in lines)


def test_a_table_of_places_fits_80_columns() -> None:
    """What stays and was not used is left out; what cannot be says why."""
    job = gpu_samples.image(gpu_samples.switched("a"), [(0, 0), (0, 1)])
    here = (*gpu_samples.switched("a")[:1], gpu_samples.gpu("b", 1, name="NVIDIA RTX A6000"))
    need = {one.uuid: 140 * samples.GIB for one in gpu_samples.switched("a")[:1]}
    places = gpu_plan(job, gpu_samples.nvidia(here), (), need).places
    error = errors.HostMismatch("it does not fit")
    error.gpus = places
    lines = drawn(failure.page("restore", error), 80)
    assert all(len(line) <= 80 for line in lines)
    table = [" ".join(line.split()) for line in lines if "GPU-00aa" in line]
    assert table[0] == "0 GPU-00aa0000 0 GPU-00aa0000 140.0 GiB 139.0 GiB too little of it is free"
    assert table[1].startswith("1 GPU-00aa0001 1 GPU-00bb0001 139.0 GiB another model: NVIDIA")
    assert sum("no GPU is left for it" in line for line in table) == 6
    error.gpus = gpu_plan(job, gpu_samples.nvidia(gpu_samples.switched("a"))).places
    assert not [line for line in drawn(failure.page("restore", error), 80) if "GPU-" in line]
