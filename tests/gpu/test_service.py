"""Jobs that serve, are brought back twice, or are copied by huge pages, on one GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt import demo_job
from tests.gpu.job import end_restored, wait
from tests.gpu.service import check_generation
from tests.gpu.stage import phase, told
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
    """Each copy has its pids in a namespace of its own and counts on, dumped again or not."""
    job = start()
    dump(stage, job.pid, stage.image)
    job.child.wait(60)
    wait(lambda: not exists(job.pid), f"pid {job.pid} is free", patience=60)
    copies: list[int] = []
    try:
        copies.append(restore_apart(stage, stage.image))
        copies.append(restore_apart(stage, stage.image))
        assert len(set(copies)) == 2
        both_count_on(job)
        again = stage.folder / "again"
        dump(stage, copies[0], again)
        gone = copies.pop(0)
        wait(lambda: not exists(gone), f"pid {gone} is free", patience=60)
        copies.append(restore_apart(stage, again))
        both_count_on(job)
    finally:
        for pid in copies:
            end_restored(pid)


def dump(stage: Stage, pid: int, image: Path) -> None:
    """Dump a job that must go."""
    answer = stage.operator.gpuckpt("dump", pid, "-o", image)
    assert answer.code == 0, f"{answer.stdout}\n{answer.stderr}"
    told("dump", answer.result)


def restore_apart(stage: Stage, image: Path) -> int:
    """Restore into a pid namespace; return the root's pid as this host sees it."""
    answer = stage.operator.gpuckpt("restore", image, "--pid-namespace", "--settle", "0.2")
    assert answer.code == 0, f"{answer.stdout}\n{answer.stderr}"
    told("restore", answer.result)
    print(answer.result["inside"])
    return int(answer.result["root_pid"])


def both_count_on(job: Job) -> None:
    """Wait until two copies have told the same new ticks, and each with the right value."""
    last = max(counted(job))
    wait(lambda: twice(job) > last + 2, f"both count on from {last}: {job.lines()[-5:]}")
    _, ticks = demo_job.read_log(job.log)
    right = dict(enumerate(demo_values(max(tick for tick, _ in ticks)), start=1))
    assert all(value == right[tick] for tick, value in ticks)
    assert not [line for line in job.lines() if line.startswith("failed")]


def counted(job: Job) -> Counter[int]:
    """Return how often each tick has been told."""
    return Counter(int(line.split()[1]) for line in job.lines() if line.startswith("tick "))


def twice(job: Job) -> int:
    """Return the last tick that more than one copy has told."""
    return max((tick for tick, times in counted(job).items() if times > 1), default=0)


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
