"""Who else could take the GPU memory that a job gives up for a while."""

from __future__ import annotations

import pytest

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.model import GpuUse, Severity
from tests.plan_samples import GIB, cuda_facts, process


@pytest.mark.parametrize(
    ("choices", "severity"),
    [
        (DumpChoices(), None),
        (DumpChoices(leave_running=True), Severity.WARNING),
        (DumpChoices(leave_running=True, rehearsal=True), Severity.BLOCKER),
        (DumpChoices(rehearsal=True), Severity.BLOCKER),
        (DumpChoices(rehearsal=True, ignore=frozenset({"gpu-shared"})), Severity.WARNING),
    ],
)
def test_a_neighbour_matters_where_the_job_goes_on_in_place(
    choices: DumpChoices, severity: Severity | None
) -> None:
    neighbour = process(900, argv=("python3", "other.py"))
    known = cuda_facts(others=((neighbour, GpuUse(900, "GPU-0", 3 * GIB)),))
    found = [one for one in judge_dump(known, choices) if one.id == "gpu-shared"]
    assert [one.severity for one in found] == ([severity] if severity else [])
    for one in found:
        assert (one.pid, one.object) == (900, "GPU 0 GPU-0")
        assert "python3 other.py" in one.reason
        assert "3.0 GiB" in one.reason
