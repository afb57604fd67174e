"""How the bench measures: commands from outside, jobs by what they tell themselves."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.bench import measure
from tests.bench.cache import cached, evict, warm
from tests.bench.contents import MIB
from tests.bench.jobs import Job, JobLost
from tests.bench.measure import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.programs
STILL = 0.3  # seconds


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Give a job of two processes with half a MiB each."""
    seed = tmp_path / "seed"
    seed.write_bytes(random.Random(1).randbytes(MIB))
    found = Job("job", tmp_path, ("bf16", "1", "2", str(seed)), 2)
    try:
        found.filled()
        yield found
    finally:
        found.end()


def test_a_job_tells_how_long_it_stood_still(job: Job) -> None:
    began = time.monotonic()
    for pid in job.pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STILL)
    for pid in job.pids:
        os.kill(pid, signal.SIGCONT)
    ended = time.monotonic()
    stood, went_on = job.stood(began)
    assert went_on - stood >= STILL
    assert began - 30 < stood
    assert went_on < ended + 30
    later = time.monotonic()
    assert job.stood(later + 60)[0] == pytest.approx(later + 60), "it has not stood since"


def test_the_same_memory_has_the_same_digest(job: Job) -> None:
    first, second = job.ask("digest")
    assert first != second, "each rank has memory of its own"
    assert job.ask("digest") == [first, second]


def test_a_job_that_is_lost_is_told_at_once(job: Job) -> None:
    os.kill(job.pids[1], signal.SIGKILL)
    with pytest.raises(JobLost, match="it said nothing"):
        job.ask("digest")


def test_a_command_is_measured_from_outside(tmp_path: Path) -> None:
    image = tmp_path / "image"
    script = (
        f"b = b'x' * (64 << 20); open({str(image)!r}, 'w').close(); import time; time.sleep(0.3)"
    )
    cost = measure.measure([sys.executable, "-S", "-c", script], image=image)
    assert cost.began < cost.safe <= cost.ended
    assert min(cost.peak, cost.own) > 64 << 20
    assert cost.cpu > 0
    assert cost.seconds >= 0.3


def test_two_commands_in_a_row_are_one() -> None:
    one, other = (measure.shell("echo told") for _ in range(2))
    both = one.then(other)
    assert (both.began, both.ended) == (one.began, other.ended)
    assert both.cpu == one.cpu + other.cpu
    assert both.output == "told\n"


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(CommandFailed, match="no such luck"):
        measure.shell("echo no such luck >&2; false | cat")


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LONGEST", 0.1)
    with pytest.raises(CommandFailed, match="ended with -15"):
        measure.measure([sys.executable, "-S", "-c", "import time; time.sleep(60)"])


def test_files_go_into_the_page_cache_and_out(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(random.Random(1).randbytes(4 * MIB))
    (tmp_path / "empty").touch()
    files = [file, tmp_path / "empty"]
    warm(files)
    assert cached(files) == 1.0
    evict(files)
    if cached(files) == 1.0:
        pytest.skip("a filesystem in memory")
    assert cached(files) == 0.0
