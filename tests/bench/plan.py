"""What is measured in a run: which jobs by which ways, in which order, and for how long."""

from __future__ import annotations

import compileall
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.bench import space, startup
from tests.bench.gpu import Calls, GpuJob, OnGpu
from tests.bench.jobs import Job, JobLost
from tests.bench.measure import CommandFailed
from tests.bench.options import ways
from tests.bench.results import Group
from tests.bench.rounds import Bench, Case, say
from tests.bench.ways import ROOT, Gpuckpt, environ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.bench.options import Options
    from tests.bench.results import Keeper
    from tests.bench.ways import Way

GROWTH: Final = "growth"
BASIC: Final = frozenset({"dump", "warm"})
CONTEXT: Final = 2.0  # GiB that a CUDA process has beside what it was asked for
# a guess, of two slow cores: seconds for each GiB and step, and for each job
PER_GIB: Final = {"gpuckpt": 2.5, "criu": 2.0, "zstd": 8.0, "lz4": 5.0}
PER_JOB: Final = 4.0


@dataclass(frozen=True)
class Item:
    """A job and the ways that it is taken."""

    case: Case
    ways: tuple[Way, ...]

    def turned(self, number: int) -> tuple[Way, ...]:
        """Return the ways in the order of one round."""
        at = (number - 1) % len(self.ways)
        return self.ways[at:] + self.ways[:at]

    @property
    def guess(self) -> float:
        """How many seconds a round of it may take."""
        gib = self.case.group.mebibytes / 1024
        steps = len(self.case.steps) + 1  # the memory has to be filled
        return sum(
            PER_JOB + gib * steps * PER_GIB.get(way.name.partition("-")[0].split()[0], 2.5)
            for way in self.ways
        )


@dataclass
class Run:
    """One run of the bench."""

    options: Options
    criu: str
    keeper: Keeper
    failed: list[str] = field(default_factory=list)
    seeds: dict[str, list[Path]] = field(default_factory=dict)

    def go(self) -> None:
        """Measure everything, round after round."""
        asked = self.options
        largest = self._largest()
        names = {*asked.ways, *asked.gpu_ways}
        archive = any(name.startswith(("zstd", "lz4")) for name in names)
        space.demand(asked.folder, largest, archive=archive)
        compileall.compile_dir(ROOT / "gpuckpt", quiet=2)
        with ExitStack() as stack:
            tmpfs = any("-tmpfs" in name for name in names)
            places = stack.enter_context(space.workplace(asked.folder, largest, tmpfs=tmpfs))
            bench = Bench(self.keeper, places)
            kinds = {"bf16"} if {"growth", "start-up"} & set(asked.parts) else set()
            kinds |= set(asked.cases) if "cases" in asked.parts else set()
            self.seeds = space.seeds(places[False], kinds)
            items = list(self._items(stack, places))
            self._rounds(bench, items)
            if "start-up" in asked.parts:
                self._started(bench)

    def _largest(self) -> int:
        asked = self.options
        sizes = [64]
        sizes += [asked.mebibytes] if "cases" in asked.parts else []
        sizes += [max(asked.sizes)] if "growth" in asked.parts else []
        sizes += [int((max(asked.gib) + CONTEXT) * 1024)] if "gpu" in asked.parts else []
        return max(sizes)

    def _items(self, stack: ExitStack, places: dict[bool, Path]) -> Iterator[Item]:
        asked, state = self.options, places[False] / "state"
        there = [way for way in ways(asked.ways, self.criu, state).values() if way.tmpfs in places]
        if "cases" in asked.parts:
            for kind in asked.cases:
                for processes in asked.processes:
                    group = Group(kind, asked.mebibytes, processes)
                    yield Item(self._case(group, kind, asked.steps), tuple(there))
        if "growth" in asked.parts:
            way = Gpuckpt("gpuckpt", tmpfs=False, environ=environ(state))
            for size in self._fitting(asked.sizes):
                yield Item(self._case(Group(GROWTH, size), "bf16", BASIC), (way,))
        if "gpu" in asked.parts:
            found = ways(asked.gpu_ways, self.criu, state).values()
            yield from self._trainings(stack, [way for way in found if way.tmpfs in places])

    def _case(self, group: Group, kind: str, steps: frozenset[str]) -> Case:
        numbers = (kind, str(group.mebibytes), str(group.processes))

        def start(folder: Path) -> Job:
            paths = map(str, self.seeds[kind])
            return Job("job", folder, (*numbers, *paths), group.processes)

        return Case(group, start, steps)

    def _fitting(self, sizes: Sequence[int]) -> Iterator[int]:
        free = space.memory_free() // space.MIB
        for size in sizes:
            if size * 2 > free:  # the job, and its image in the page cache
                say(f"growth: {size} MiB are left out, {free} MiB of memory are free")
            else:
                yield size

    def _trainings(self, stack: ExitStack, found: list[Way]) -> Iterator[Item]:
        calls = Calls()
        stack.callback(calls.close)
        there = tuple(way if isinstance(way, Gpuckpt) else OnGpu(way, calls) for way in found)
        space.grow_memory(int(max(self.options.gib) * 2.6 + 6))
        for gib in self.options.gib:
            for dtype in self.options.dtypes:
                group = Group(f"training {dtype}", int(gib * 1024))
                start = partial(self._training, calls, dtype, gib)
                yield Item(Case(group, start, self.options.gpu_steps), there)

    def _training(self, calls: Calls, dtype: str, gib: float, folder: Path) -> Job:
        job = GpuJob("training", folder, (dtype, str(gib)))
        job.calls = calls
        return job

    def _rounds(self, bench: Bench, items: list[Item]) -> None:
        rounds, ends = self.options.rounds, time.monotonic() + self.options.minutes * 60
        longest = sum(item.guess for item in items)
        say(f"rounds: {rounds}, each of about {longest / 60:.1f} minutes, as a guess")
        for number in range(1, rounds + 1):
            began = time.monotonic()
            if number > 1 and began + longest > ends:
                say(f"no time for round {number} and later ones (--minutes)")
                return
            for item in items:
                self._round(bench, item, number, ends)
            longest = time.monotonic() - began
            left = (rounds - number) * longest
            say(f"round {number} took {longest / 60:.1f} minutes, {left / 60:.1f} are left")

    def _round(self, bench: Bench, item: Item, number: int, ends: float) -> None:
        for way in item.turned(number):
            if time.monotonic() > ends:
                say(f"no time for {item.case.group}, {way.name} (--minutes)")
            else:
                self._measure(bench, item.case, way, number)

    def _measure(self, bench: Bench, case: Case, way: Way, number: int) -> None:
        """Take one way; one that fails is told, and does not stop the others."""
        try:
            bench.measure(case, way, number)
        except (CommandFailed, JobLost, AssertionError, OSError) as why:
            say(f"FAILED: {case.group}, {way.name}: {why}")
            self.failed.append(f"{case.group.case} by {way.name}")

    def _started(self, bench: Bench) -> None:
        case = self._case(Group("start-up", 64), "bf16", BASIC)
        try:
            startup.measure(bench, case)
        except (CommandFailed, JobLost, AssertionError, OSError) as why:
            say(f"FAILED: start-up: {why}")
            self.failed.append("start-up")
