"""Compare gpuckpt with what people do today, in one run: `make bench`.

Every round takes each job through each way, one after the other, in another order every time, so
that all of them see the same machine. Numbers are told as they come; the tables are on stdout.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import ExitStack
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


def measured(options: Options) -> Keeper:
    """Measure all that was asked for; what there is so far if it is interrupted."""
    with ExitStack() as stack:
        file = stack.enter_context(options.keep.open("a")) if options.keep else None
        keeper = Keeper(file)
        criu = find(Runner())
        command = shlex.join(["make", "bench", f"ARGS={shlex.join(sys.argv[1:])}"])
        about = machine.facts(options.folder, str(criu.version)) | {"repeat with": command}
        keeper.about(about)
        say(machine.told(about))
        try:
            Run(options, criu.program, keeper).go()
        except KeyboardInterrupt:
            say("interrupted: the tables are of what there is so far")
        print(report(about, keeper.steps))
        return keeper


def stop(*_: object) -> None:
    """Let SIGTERM end it as Ctrl-C does: with everything put away."""
    raise KeyboardInterrupt


def main() -> int:
    """Measure, or only print the tables of what was measured."""
    options = parse()
    if options.tables_of:
        about, steps = load(options.tables_of)
        print(report(about, steps))
        return 0
    if os.geteuid() != 0:
        say("the bench needs root, as CRIU does")
        return 1
    signal.signal(signal.SIGTERM, stop)
    return 0 if measured(options).steps else 1


if __name__ == "__main__":
    raise SystemExit(main())
