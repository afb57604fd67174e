"""README's table of what the drivers cannot bring back: each row is refused, by that very name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.flow.sight.plan import judge_dump, refusal
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.model import NvidiaFacts
from gpuckpt.tools.held import DeviceNode
from tests.plan_samples import cuda_facts, gpu
from tests.unit.flow.test_plan_gpu import DRIVER, RIGHT, job, mapped, process, rank, ranks, task

if TYPE_CHECKING:
    from gpuckpt.flow.sight.facts import DumpFacts

README = Path(__file__).parents[3] / "README.md"
IPC = "/dev/shm/cuda.shm.0.384.1"  # 0x384 is 900, outside of the tree
NVLS = {name: value for name, value in RIGHT.items() if name != "NCCL_NVLS_ENABLE"}


def one(**changes: object) -> DumpFacts:
    """Return a tree whose CUDA process has these changes."""
    return cuda_facts(look={"tasks": (task(process(100)), task(process(110, 100), **changes))})


VERBS = DeviceNode(110, 5, "/dev/infiniband/uverbs0", False, 231, 192)
MPS = one(environment=frozenset({"CUDA_MPS_PIPE_DIRECTORY"}))
CASES: dict[str, DumpFacts] = {
    "NCCL between GPUs": ranks(rank(0), rank(1), sockets=2),
    "multicast": ranks(rank(0, **NVLS), rank(1, **NVLS), sockets=2),
    "GPU memory used": one(mapped=(mapped(IPC),)),
    "exported handles": job(holder={"control": 2}),
    "managed": job(holder={"uvm": 2}),
    "clients of MPS": replace(MPS, look=replace(MPS.look, mps_running=True)),
    "CUDA's profilers": one(settings={"CUDA_INJECTION64_PATH": "/x/libTool.so"}),
    "NVML unloaded": job(holder={"control": 2, "caps": 2}),
    "GPUs in MIG": cuda_facts(nvidia=NvidiaFacts("580.1", "13.0", (gpu(0, mig=True), gpu(1)))),
    "RDMA": cuda_facts(look={"nodes": (VERBS,)}),
    "NVML in use": job(nvidia=replace(DRIVER, driver="565.57.01")),
}


def rows() -> dict[str, str]:
    """Return the first two columns of the table."""
    text = README.read_text()
    table = text[text.index("| GPU state | plan tells it as |") :].partition("\n\n")[0]
    found = (line.split("|")[1:3] for line in table.splitlines()[2:])
    return {state.strip(): told.strip() for state, told in found}


def test_every_row_is_shown_by_a_case() -> None:
    starts = [*CASES, "coming back on other GPUs"]
    for state in rows():
        assert sum(state.startswith(start) for start in starts) == 1, state
    assert len(rows()) == len(starts)


@pytest.mark.parametrize("start", CASES)
def test_a_dump_is_refused_by_the_name_in_the_table(start: str) -> None:
    told = next(name for state, name in rows().items() if state.startswith(start))
    (name,) = re.findall(r"`([a-z-]+)`", told)
    found = judge_dump(CASES[start], DumpChoices())
    assert name in {one.id for one in found if one.blocks}
    error = refusal(found)
    assert error is not None
    assert "nothing was touched" in error.message
