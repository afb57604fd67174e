"""What was measured: kept line by line as JSON, gathered again, and brought to medians."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BARE = "criu"
RUN = 1000  # more rounds than a run has
SYNCED = ", then synced"


@dataclass(frozen=True, order=True)
class Group:
    """What may be compared: the same job."""

    case: str
    mebibytes: int
    processes: int = 1


@dataclass(frozen=True)
class Step:
    """The numbers of one step of one way in one round."""

    group: Group
    way: str
    round: int
    step: str
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A number that was measured some times."""

    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.values)


class Keeper:
    """Writes every step to a file, and to a list."""

    def __init__(self, file: IO[str] | None = None) -> None:
        """Use an open file, if any."""
        self.steps: list[Step] = []
        self._file = file

    def about(self, facts: dict[str, str]) -> None:
        """Keep what the run was made on."""
        self._write({"about": facts})

    def add(self, step: Step) -> None:
        """Keep a step."""
        self.steps.append(step)
        self._write(asdict(step))

    def _write(self, line: dict[str, Any]) -> None:
        if self._file:
            print(json.dumps(line), file=self._file, flush=True)


def load(paths: Iterable[Path]) -> tuple[dict[str, str], list[Step]]:
    """Read files of a Keeper; the last facts count, and no round of one is a round of another."""
    about: dict[str, str] = {}
    steps: list[Step] = []
    for number, path in enumerate(paths):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            if "about" in told:
                about = told["about"]
            else:
                step = Step(**told | {"group": Group(**told["group"])})
                steps.append(replace(step, round=step.round + number * RUN))
    return about, steps


def derived(steps: Iterable[Step]) -> Iterator[Step]:
    """Give a second dump for each of bare CRIU that was synced, as if that belonged to it."""
    for one in steps:
        sync = one.values.get("sync")
        if sync is not None and one.way == BARE:
            longer = {
                name: value + sync if name in {"seconds", "still"} else value
                for name, value in one.values.items()
                if name != "sync"
            }
            yield replace(one, way=one.way + SYNCED, values=longer)


def merged(steps: Iterable[Step]) -> list[Step]:
    """Put together what was told of one step at different times."""
    found: dict[tuple[Group, str, int, str], Step] = {}
    for one in steps:
        key = (one.group, one.way, one.round, one.step)
        before = found[key].values if key in found else {}
        found[key] = replace(one, values=before | one.values)
    return list(found.values())


Rows = dict[str, dict[str, Spread]]


def spreads(steps: Iterable[Step]) -> dict[Group, Rows]:
    """Return by group, way and "step.value" what all rounds gave, as they first came."""
    whole = merged(steps)
    found: dict[Group, dict[str, dict[str, list[float]]]] = {}
    for one in (*whole, *derived(whole)):
        rows = found.setdefault(one.group, {})
        row = rows.setdefault(one.way, defaultdict(list))
        for name, value in one.values.items():
            row[f"{one.step}.{name}"].append(value)
    return {
        group: {
            way: {name: Spread(tuple(values)) for name, values in row.items()}
            for way, row in rows.items()
        }
        for group, rows in found.items()
    }
