"""What the tests on one GPU and those on several share: jobs, an operator, the driver."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.model import CudaState
from gpuckpt.tools.cuda import Cuda, choose
from gpuckpt.tools.nvidia import Nvidia
from gpuckpt.tools.run import Runner
from tests.gpu.job import Job, wait
from tests.gpu.tables import table
from tests.gpu.tree import Tree
from tests.root.harness import Answer, Field, exists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["cuda", "stage", "start"]
RUN_PATIENCE = 120.0  # seconds for one run of gpuckpt
PAGES = ".image.stage-*/criu/pages-*"


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


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Give a place for trees, and end them all."""
    here = Stage(tmp_path, Field(tmp_path, patience=RUN_PATIENCE))
    yield here
    for tree in here.trees:
        tree.end()


@dataclass
class Stage:
    """A folder, the trees that were started there, and somebody who runs gpuckpt."""

    folder: Path
    operator: Field
    trees: list[Tree] = field(default_factory=list)

    def place(self) -> Path:
        """Return the folder of the tree that is started next."""
        folder = self.folder / f"tree-{len(self.trees)}"
        folder.mkdir(exist_ok=True)
        return folder

    def tree(self, argv: tuple[str, ...], *options: str, **settings: str) -> Tree:
        """Start a tree in `place`, with options for `gpuckpt run` and variables."""
        tree = Tree(self.place(), argv, *options, **settings)
        self.trees.append(tree)
        tree.named()
        return tree

    def dump(self, tree: Tree, *options: object) -> Answer:
        """Dump a tree, which must succeed; if it was to go, it is gone."""
        members = tree.members()
        answer = self.operator.gpuckpt("dump", tree.pid, "-o", self.image, *options)
        assert answer.code == 0, f"{answer.stdout}\n{answer.stderr}\n{tree.tail()}"
        told("dump", answer.result)
        if not answer.result["running"]:
            tree.away = True
            for pid in members:
                wait(lambda pid=pid: not exists(pid), f"pid {pid} is free", patience=60)
            assert Nvidia().uses(members) == ()
        return answer

    def restore(self, tree: Tree, *options: object) -> dict[str, Any]:
        """Restore what was dumped last, which must succeed."""
        options = ("--settle", "0.2", *options)
        answer = self.operator.gpuckpt("restore", self.image, *options)
        tree.away = answer.code not in {0, 10, 11}
        assert answer.code == 0, f"{answer.stdout}\n{answer.stderr}\n{tree.tail()}"
        told("restore", answer.result)
        tree.members()
        return answer.result

    def stays_bitwise_equal(
        self, training: Callable[[Stage], Tree], ranks: int, steps: int
    ) -> None:
        """Dump a training in mid-way, restore it at once: all it logs is as if undisturbed."""
        undisturbed = training(self)
        undisturbed.wait_for(undisturbed.ended, "the training ends")
        tree = training(self)
        tree.began(ranks, steps // 4)
        self.dump(tree)
        assert max(tree.progress().values()) < steps * 3 // 4, "dumped too late to prove anything"
        self.restore(tree)
        tree.wait_for(tree.ended, "the training ends")
        assert tree.lines() == undisturbed.lines()
        assert len(tree.lines()) == ranks

    def dump_in_a_row(self, tree: Tree, dumps: int, title: str) -> None:
        """Dump a tree many times, left running; each must succeed, and the tree go on after it."""
        rows = []
        for number in range(1, dumps + 1):
            rows.append((number, *row(self.dump(tree, "--leave-running"))))
            self.drop()
            tree.goes_on(2)
        table(title, ("dump", *ROW), rows)

    def lose(self, tree: Tree, victim: int, others: list[int], cuda: Cuda) -> None:
        """Kill one process while memory streams: it is named, the others run, there is no image."""
        argv = self.operator.command("dump", tree.pid, "-o", self.image, "--json")
        dumping = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait(
                lambda: any(page.stat().st_size for page in self.folder.glob(PAGES)),
                "pages have arrived",
                lambda: "" if dumping.poll() is None else f"gpuckpt ended: {dumping.communicate()}",
            )
        finally:
            os.kill(victim, signal.SIGKILL)
            out, story = dumping.communicate(timeout=120)
        print(f"\nexit {dumping.returncode}\n{out}\n{story}")
        assert dumping.returncode not in {0, 1}
        assert str(victim) in out
        wait(
            lambda: cuda.states(others) == dict.fromkeys(others, CudaState.RUNNING),
            f"{others} run again",
        )
        assert not self.image.exists()

    @property
    def image(self) -> Path:
        """Where dumps go."""
        return self.folder / "image"

    def drop(self) -> None:
        """Remove the image, so that the next dump has the place."""
        shutil.rmtree(self.image)

    def refused(self, tree: Tree, verb: str = "plan") -> dict[str, str]:
        """Return what stops a dump, by id, and how bad each is."""
        answer = self.operator.gpuckpt(verb, tree.pid, "-o", self.image)
        assert answer.code in {0, 4}, f"{answer.stdout}\n{answer.stderr}"
        part = answer.json.get("result") or answer.json["error"]
        return {one["id"]: one["severity"] for one in part["findings"]}


def told(verb: str, result: dict[str, Any]) -> None:
    """Print the phases, so that a run's log holds its numbers."""
    receipt = result["receipt"]
    phases = ", ".join(f"{one['name']} {one['seconds']:.2f}" for one in receipt["phases"])
    pause = f", pause {result['pause']:.2f}" if "pause" in result else ""
    found = " ".join(one["id"] for one in result["findings"])
    print(f"\n{verb}: {receipt['seconds']:.2f} s{pause}: {phases}; {found or 'no findings'}")


def phase(result: dict[str, Any], name: str) -> float:
    """Return how long a phase took, 0.0 if there was none."""
    return sum(one["seconds"] for one in result["receipt"]["phases"] if one["name"] == name)


def rounds(result: dict[str, Any]) -> int:
    """Return how many rounds the lock took."""
    return sum(one["rounds"] for one in result["receipt"]["phases"] if one["name"] == "lock")


def row(answer: Answer) -> tuple[object, ...]:
    """Return the times of one dump: rounds, lock, gpu-out, gpu-in, pause, all."""
    result = answer.result
    names = ("lock", "gpu-out", "gpu-in")
    times = [phase(result, name) for name in names]
    return (rounds(result), *times, result["pause"], result["receipt"]["seconds"])


ROW = ("rounds", "lock s", "gpu-out s", "gpu-in s", "pause s", "all s")
