"""What the tests on a real GPU share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools.cuda import Cuda, choose
from gpuckpt.tools.run import Runner
from tests.gpu.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if "gpu" in item.path.relative_to(item.config.rootpath).parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start jobs: `start()` the demo's, `start("spin.py", "20")` one of tests/gpu/jobs.

    All have been seen to count, or to say that they began, before the test goes on.
    """
    started: list[Job] = []

    def begin(name: str = "", *arguments: str, first: str = "") -> Job:
        log = tmp_path / f"job-{len(started)}.log"
        job = Job.script(name, log, *arguments) if name else Job.demo(log)
        started.append(job)
        if first:
            job.await_line(first)
        else:
            job.counts_on(3)
        return job

    yield begin
    for job in started:
        job.end()


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    """The real driver, by way of the bindings."""
    tool = choose(Runner())
    assert isinstance(tool, Cuda)
    yield tool
    tool.close()
