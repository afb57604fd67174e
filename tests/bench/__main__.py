"""Compare gpuckpt with what people do today, in one run: `make bench`.

Every round takes each job through each way, one after the other, in another order every time, so
that all of them see the same machine. Numbers are told as they come; the tables are on stdout.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING

from gpuckpt.tools.criu import find
from gpuckpt.tools.run import Runner
from tests.bench import machine
from tests.bench.options import parse
from tests.bench.plan import Run
from tests.bench.report import report
from tests.bench.results import Keeper, load
from tests.bench.rounds import say

if TYPE_CHECKING:
    from tests.bench.options import Options


def measured(options: Options) -> bool:
    """Measure all that was asked for, and print it; whether nothing went wrong."""
    criu = find(Runner())
    command = shlex.join(["make", "bench", f"ARGS={shlex.join(sys.argv[1:])}"])
    about = machine.facts(options.folder, str(criu.version)) | {"repeat with": command}
    with options.keep.open("w") as file:
        keeper = Keeper(file)
        keeper.about(about)
        say(f"{machine.told(about)}\nall numbers go to {options.keep}")
        run = Run(options, criu.program, keeper)
        try:
            run.go()
        except KeyboardInterrupt:
            run.failed.append("interrupted: the rest of it")
    print(report(about, keeper.steps, run.failed))
    return not run.failed


def stop(*_: object) -> None:
    """Let SIGTERM end it as Ctrl-C does: with everything put away."""
    raise KeyboardInterrupt


def main() -> int:
    """Measure, or only print the tables of what was measured."""
    options = parse()
    if options.tables_of:
        about, steps = load(options.tables_of)
        print(report(about, steps, ()))
        return 0
    if os.geteuid() != 0:
        say("the bench needs root, as CRIU does")
        return 1
    if "gpu" in options.parts and not machine.has_gpu():
        say("there is no NVIDIA driver here (/dev/nvidiactl is missing): leave --gpu out")
        return 1
    signal.signal(signal.SIGTERM, stop)
    return 0 if measured(options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
