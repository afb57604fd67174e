"""The driver's checkpoint calls and nothing else: what everybody has to pay for, by line.

`python -m tests.bench.calls` reads lines of ACTION PID and answers each with what it gave, or with
`failed: ...`. It neither holds threads nor looks at states in between, as gpuckpt's own does.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpuckpt.tools.cuda import PROGRAM_VARIABLE
from gpuckpt.tools.cuda_binary import Binary
from gpuckpt.tools.cuda_driver import CallRefused, load_bindings
from gpuckpt.tools.run import Runner

if TYPE_CHECKING:
    from gpuckpt.tools.cuda_driver import Driver

LOCK_MS = 60_000


def act(driver: Driver, action: str, pid: int) -> str:
    if action == "state":
        return str(driver.state(pid))
    if action == "lock":
        driver.lock(pid, LOCK_MS)
    elif action == "restore":
        driver.restore(pid, {})
    else:
        getattr(driver, action)(pid)  # checkpoint, unlock
    return "done"


def main() -> None:
    named = os.environ.get(PROGRAM_VARIABLE)
    driver: Driver = Binary(named, Runner()) if named else load_bindings()
    answers = os.fdopen(os.dup(1), "w")  # libraries print what they like to descriptor 1
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        action, pid = line.split()
        try:
            print(act(driver, action, int(pid)), file=answers, flush=True)
        except CallRefused as why:
            print(f"failed: {why.name} {why.detail}", file=answers, flush=True)


main()
