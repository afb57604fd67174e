"""Jobs that serve, are brought back twice, or are copied by huge pages, on one GPU."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt import demo_job
from tests.gpu.job import wait
from tests.gpu.service import check_generation
from tests.gpu.stage import phase
from tests.gpu.tables import table
from tests.gpu.tree import script
from tests.root.harness import exists

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gpu.job import Job
    from tests.gpu.stage import Stage

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GIB = 8


def test_a_generation_server_says_the_same(stage: Stage) -> None:
    """Engine on the GPU, HTTP front and tokenizer: sessions go on where they were."""
    check_generation(stage, 1)


def test_the_same_image_twice_side_by_side(start: Callable[..., Job], stage: Stage) -> None:
    """Each copy has its pids in a namespace of its own, and counts on."""
    job = start()
    answer = stage.operator.gpuckpt("dump", job.pid, "-o", stage.image)
    assert answer.code == 0, answer.stderr
    job.child.wait(60)
    wait(lambda: not exists(job.pid), f"pid {job.pid} is free", patience=60)
    last = job.ticks()
    copies: list[int] = []
    try:
        for _ in range(2):
            restored = stage.operator.gpuckpt("restore", stage.image, "--pid-namespace")
            assert restored.code == 0, f"{restored.stdout}\n{restored.stderr}"
            print(f"\nrestored: {restored.result}")
            copies.append(host_pid(restored.result))
        assert len(set(copies)) == 2
        wait(lambda: twice(job) > last + 5, f"both count on from {last}: {job.lines()[-5:]}")
        _, ticks = demo_job.read_log(job.log)
        right = dict(enumerate(demo_values(max(tick for tick, _ in ticks)), start=1))
        assert all(value == right[tick] for tick, value in ticks)
        assert not [line for line in job.lines() if line.startswith("failed")]
    finally:
        for pid in copies:
            if exists(pid):
                os.kill(pid, signal.SIGTERM)
        for pid in copies:
            wait(lambda pid=pid: not exists(pid), f"end of restored process {pid}", patience=60)


def host_pid(result: dict[str, int]) -> int:
    """Return the root's pid as the host sees it."""
    return int(result.get("host_pid") or result["root_pid"])


def twice(job: Job) -> int:
    """Return the last tick that two copies have told."""
    told = Counter(line.split()[1] for line in job.lines() if line.startswith("tick "))
    return max((int(tick) for tick, times in told.items() if times > 1), default=0)


def demo_values(count: int) -> list[int]:
    """Return what the demo job has to say in its first ticks."""
    values = demo_job.values("gpu")
    return [next(values) for _ in range(count)]


def test_huge_pages_on_and_off(stage: Stage) -> None:
    """With --thp and without, for the same state; the host's setting is afterwards as it was."""
    before = HUGE_PAGES.read_text()
    tree = stage.tree(script("ballast.py", stage.place() / "ballast.log", GIB))
    tree.began(1)
    rows = []
    for options in ((), ("--thp",)):
        dumped = stage.dump(tree, *options).result
        assert HUGE_PAGES.read_text() == before
        restored = stage.restore(tree, *options)
        assert HUGE_PAGES.read_text() == before
        tree.goes_on(3)
        stage.drop()
        times = (phase(dumped, "gpu-out"), phase(dumped, "stream"), dumped["pause"])
        back = (phase(restored, "criu"), phase(restored, "gpu-in"))
        whole = restored["receipt"]["seconds"]
        rows.append((" ".join(options) or before.split("[")[1].split("]")[0], *times, *back, whole))
    columns = ("huge pages", "gpu-out s", "stream s", "pause s", "criu s", "gpu-in s", "restore s")
    table(f"{GIB} GiB of GPU state", columns, rows)
