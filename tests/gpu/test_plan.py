"""What a plan sees of a job's GPU side from outside, before any driver call changes a thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import CudaState
from tests.gpu.job import wait
from tests.root.harness import Field

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.job import Job

    Start = Callable[..., Job]


@pytest.fixture
def operator(tmp_path: Path) -> Field:
    """Give somebody who runs gpuckpt."""
    return Field(tmp_path)


def plan(operator: Field, job: Job) -> tuple[int, dict[str, str]]:
    """Return the status of a plan and what it found."""
    answer = operator.gpuckpt("plan", job.pid, "-o", operator.folder / "image")
    return answer.code, {one["id"]: one["severity"] for one in answer.json["result"]["findings"]}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("plain", {}),
        ("pinned", {}),
        ("nvml-kept", {}),
        ("nvml-shut-down", {}),
        ("nvml-only", {}),
        ("managed-before", {}),
        ("nvml-unloaded", {"nvml-unloaded": "blocker"}),
        ("managed", {"managed-memory": "blocker"}),
        ("exported", {"gpu-memory-exported": "blocker"}),
        ("forked", {"gpu-inherited": "warning"}),
        ("offered", {"cuda-ipc": "warning"}),
    ],
)
def test_traces(
    start: Start, operator: Field, cuda: Cuda, kind: str, found: dict[str, str]
) -> None:
    """What would fail is refused; what only looks like it is not, and then really works."""
    job = start("hazard.py", kind)
    code, seen = plan(operator, job)
    assert seen == found
    if code:
        assert code == 4
        assert operator.gpuckpt("dump", job.pid, "-o", operator.folder / "image").code == 4
        assert cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}
    else:
        image = operator.folder / "image"
        assert operator.gpuckpt("dump", job.pid, "--leave-running", "-o", image).code == 0
    job.counts_on()


def test_ipc_in_use(start: Start, operator: Field, cuda: Cuda) -> None:
    """The importer would be destroyed: both ends are named, and nothing is touched."""
    job = start("sharing.py")
    wait(lambda: plan(operator, job)[1].get("cuda-ipc") == "blocker", "the child has the tensor")
    answer = operator.gpuckpt("plan", job.pid, "-o", operator.folder / "image")
    shared = [one for one in answer.json["result"]["findings"] if one["id"] == "cuda-ipc"]
    assert {one["severity"] for one in shared} == {"blocker"}
    assert len({one["pid"] for one in shared}) == 2
    assert set(cuda.states([one["pid"] for one in shared]).values()) == {CudaState.RUNNING}
    job.counts_on()


def test_a_profiler_is_refused_by_the_driver(start: Start, operator: Field, cuda: Cuda) -> None:
    """CUPTI leaves no trace of its own; the lock refuses, and the text says what it was."""
    job = start("profiled.py")
    answer = operator.gpuckpt("dump", job.pid, "-o", operator.folder / "image")
    assert answer.code == 5
    assert "profiler" in answer.stdout
    assert cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}
    job.counts_on()
