"""How long the commands take that only look: those that people type while they decide."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.results import Step
from tests.bench.rounds import say, undisturbed
from tests.bench.ways import Gpuckpt, environ

if TYPE_CHECKING:
    from tests.bench.rounds import Bench, Case

TIMES: Final = 9


def measure(bench: Bench, case: Case) -> None:
    """Start each command some times, by turns, with a small job and an image of it."""
    place = bench.places[False]
    folder = Path(tempfile.mkdtemp(prefix="start-", dir=place))
    way = Gpuckpt("gpuckpt", tmpfs=False, environ=environ(place / "state"))
    job = case.start(folder)
    try:
        job.filled()
        way.run("dump", job.pid, "-o", folder / "image", "--leave-running", "--json")
        commands = {
            "--help": ("--help",),
            "dump --help": ("dump", "--help"),
            "show": ("show", folder / "image"),
            "plan": ("plan", job.pid),
        }
        for number in range(1, TIMES + 1):
            for name, words in commands.items():
                cost = way.run(*words)
                bench.keeper.add(Step(case.group, "gpuckpt", number, name, cost.values()))
        say("start-up: done")
    finally:
        with undisturbed():
            job.end()
            shutil.rmtree(folder)
