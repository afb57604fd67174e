"""What is told of a job that is back, and what is only a job's usual coming and going."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuckpt.flow.returning import doubts
from gpuckpt.image.outside import PipeRecord
from gpuckpt.tools.descriptors import Descriptor
from gpuckpt.tools.look import Look, Task
from gpuckpt.tools.signs import Signs
from tests.fakes.host import ROOT_PID, FakeHost, process
from tests.image_samples import manifest as sample

if TYPE_CHECKING:
    from pathlib import Path

ROOT = sample().tree[0]


@pytest.mark.parametrize(
    ("clock", "started", "told"),
    [
        (1000.0, 10_000, True),  # as old as the job but for a tenth
        (1000.0, 99_000, False),  # of the last ten seconds
        (0.0, 99_000, True),  # an image that does not say when it was made
    ],
)
def test_the_end_of_a_child(clock: float, started: int, told: bool) -> None:
    root = msgspec.structs.replace(ROOT, start_time=0, clock=clock)
    child = msgspec.structs.replace(ROOT, pid=ROOT.pid + 1, start_time=started)
    manifest = msgspec.structs.replace(sample(), tree=(root, child))
    here = doubts.Moment({root.pid: Signs(0, {})}, frozenset())
    assert [one.id for one in doubts.ended(manifest, here)] == ["child-ended"] * told


def test_a_pipe_that_was_broken_already() -> None:
    """Not told: nobody had its other end at the dump either, and the job lives with that."""
    opened = tuple(
        Descriptor(fd, f"pipe:[{fd}]", "pipe", inode=fd, reads=False, writes=True) for fd in (1, 2)
    )
    look = Look(tasks=(Task(process(ROOT.pid), descriptors=opened),))
    had = PipeRecord(pid=ROOT.pid, fd=2, writes=True, holder="tee")
    outside = msgspec.structs.replace(sample().outside, pipes=(had,))
    manifest = msgspec.structs.replace(sample(), outside=outside)
    assert [one.object for one in doubts.outputs(manifest, look)] == ["fd 2 stderr"]


def test_a_copy_is_not_what_the_job_itself_has_started(tmp_path: Path) -> None:
    host = FakeHost.with_job(cuda=0)
    manifest = msgspec.structs.replace(sample(), created="2026-01-01T00:00:00Z")
    alike = {"argv": ROOT.argv, "cwd": ROOT.cwd}
    host.processes |= {
        5001: process(5001, ROOT_PID, **alike),
        5002: process(5002, 5001, **alike),
        5003: process(5003, 1, **alike),
    }
    found = doubts.copies(host.toolbox(tmp_path), manifest, [ROOT_PID])
    assert [one.pid for one in found] == [5003]
