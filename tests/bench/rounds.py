"""One way in one round: a fresh job, dumped and brought back, step by step, and proved.

Every step starts with nothing to be written left in memory. Restores are measured with all of the
image in the page cache, which is where bare CRIU's is after its dump, and with nothing of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.cache import cached, evict, warm
from tests.bench.jobs import JobLost
from tests.bench.measure import shell
from tests.bench.results import Group, Keeper, Step
from tests.bench.ways import RUNNING, Gpuckpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.bench.jobs import Job
    from tests.bench.measure import Cost
    from tests.bench.ways import Way

STEPS: Final = ("pause", "dump", "verify", "warm", "cold")
REMAINS: Final = 0.02  # this share of an image may stay in the page cache


@dataclass(frozen=True)
class Case:
    """A job to be measured with, and how it is started in a folder."""

    group: Group
    start: Callable[[Path], Job]
    steps: frozenset[str] = frozenset(STEPS)


@dataclass
class Bench:
    """Where measurements are made and kept; `places` are the folders on disk and in memory."""

    keeper: Keeper
    places: Mapping[bool, Path]
    digests: dict[Group, list[str]] = field(default_factory=dict)

    def measure(self, case: Case, way: Way, number: int) -> None:
        """Take one way through its steps."""
        at = Path(tempfile.mkdtemp(prefix="job-", dir=self.places[False]))
        images = Path(tempfile.mkdtemp(prefix="images-", dir=self.places[way.tmpfs]))
        try:
            job = case.start(at)
            try:
                job.filled()
                if case.group not in self.digests:
                    self.digests[case.group] = job.ask("digest")
                _Trip(self, case, way, number, job, images).go()
            finally:
                with undisturbed():
                    job.end()
        finally:
            with undisturbed():
                shutil.rmtree(images)
                shutil.rmtree(at)

    def prove(self, group: Group, job: Job) -> None:
        """See that the job's memory is what it is in every job of this kind.

        Raises:
            JobLost: it is not.
        """
        if job.ask("digest") != self.digests[group]:
            raise JobLost(f"the memory of {group} is not what it was")


@dataclass
class _Trip:
    """What one way does with one job."""

    bench: Bench
    case: Case
    way: Way
    number: int
    job: Job
    images: Path
    dumped: Cost | None = None

    def go(self) -> None:
        wanted = self.case.steps
        if "pause" in wanted and self.way.pauses:
            self._pause()
        self._dump()
        if "verify" in wanted and isinstance(self.way, Gpuckpt):
            self._verify(self.way)
        for step in ("warm", "cold"):
            if step in wanted and not (step == "cold" and self.way.tmpfs):
                self._restore(step)

    def _pause(self) -> None:
        os.sync()
        cost = self.way.pause(self.job, self.images)
        stood, went_on = self.job.stood(cost.began)
        self._keep("pause", still=went_on - stood, **cost.values())
        shutil.rmtree(self.images / RUNNING)

    def _dump(self) -> None:
        os.sync()
        cost, parts = self.way.dump(self.job, self.images)
        self.job.gone()
        synced = self.way.sync(self.images)
        stored = sum(path.stat().st_size for path in self.way.files(self.images))
        more = {} if synced is None else {"sync": synced.seconds}
        self._keep("dump", stored=float(stored), **parts, **more, **cost.values())
        self.dumped = cost

    def _verify(self, way: Gpuckpt) -> None:
        for step, prepare in (("verify", warm), ("verify cold", evict)):
            if way.tmpfs and prepare is evict:
                continue
            prepare(way.files(self.images))
            cost = way.run("verify", self.images / "image", "--json")
            self._keep(step, **cost.values())
        if not way.tmpfs:
            evict(way.files(self.images))
            read = shell(f"cat {shlex.join(map(str, way.files(self.images)))} >/dev/null")
            self._keep("read cold", **read.values())

    def _restore(self, step: str) -> None:
        os.sync()
        files = self.way.files(self.images)
        (warm if step == "warm" else evict)(files)
        if step == "cold" and (share := cached(files)) > REMAINS:
            say(f"{share:.0%} of the image stayed in the page cache: this restore is not cold")
        cost, parts = self.way.restore(self.job, self.images)
        stood, went_on = self.job.stood(cost.began)
        if self.dumped is not None:
            self._keep("dump", still=self.dumped.safe - stood)
            self.dumped = None
        self._keep(step, works=went_on - cost.began, **parts, **cost.values())
        self.bench.prove(self.case.group, self.job)
        self.job.end()

    def _keep(self, step: str, **values: float) -> None:
        kept = Step(self.case.group, self.way.name, self.number, step, values)
        self.bench.keeper.add(kept)
        group = kept.group
        numbers = ", ".join(f"{name} {brief(name, value)}" for name, value in values.items())
        job = f"{group.case} {group.mebibytes} MiB x{group.processes}"
        say(f"round {self.number}, {job}, {self.way.name}, {step}: {numbers}")


def brief(name: str, value: float) -> str:
    """Return a number as a person reads it."""
    if name in {"peak", "own", "stored"}:
        return f"{value / (1 << 20):.0f} MiB"
    return f"{value:.3f}"


def say(text: str) -> None:
    """Tell at once how things stand, beside the tables."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody interrupt this: it cleans up."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
