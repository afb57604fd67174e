"""Real processes to look at: Python code in a session of its own, with its output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gpuckpt.flow.sight.facts import DumpFacts
from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.tools.host import Host
from gpuckpt.tools.proc import Proc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuckpt.model import Finding

PATIENCE = 20.0  # seconds; a loaded machine starts an interpreter slowly
READY = "\nprint('ready', flush=True)\nimport time\nwhile True: time.sleep(600)\n"


def wait_until(true: Callable[[], object]) -> None:
    """Wait until something holds, or fail."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@contextmanager
def target(folder: Path, code: str, *prefix: str, **more: Any) -> Iterator[int]:
    """Run code that then says `ready` and sleeps; end its whole session afterwards."""
    out = folder / f"out-{time.monotonic_ns()}"
    settings = {"stdin": subprocess.DEVNULL, "start_new_session": True, "cwd": folder} | more
    with out.open("wb") as file:
        settings = {"stdout": file, "stderr": subprocess.STDOUT} | settings
        popen = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-c", code + READY],
            **settings,
        )
    with popen:
        try:
            if settings["stdout"] is file:
                wait_until(lambda: "ready" in out.read_text() or popen.poll() is not None)
                assert popen.poll() is None, out.read_text()
            yield popen.pid
        finally:
            for pid in sorted(_session(popen.pid), reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _session(pid: int) -> set[int]:
    """Return the target's processes: its session and whatever hangs from it."""
    found = {pid}
    with suppress(Exception):
        found |= set(Proc().tree(pid).pids)
    return found


def facts(pid: int, **changes: Any) -> DumpFacts:
    """Gather the facts of a real tree without CUDA."""
    proc, host = Proc(), Host()
    tree = proc.tree(pid)
    room = {"memory_available": host.memory_available(pid), "free_bytes": 1 << 50}
    return DumpFacts(tree, proc.look(tree), host.facts(), **(room | changes))


def findings(pid: int, **choices: Any) -> tuple[Finding, ...]:
    """Judge a real tree; left out are privilege and a /tmp in memory, which are not its own."""
    found = judge_dump(facts(pid), DumpChoices(**choices))
    return tuple(one for one in found if one.id not in {"not-privileged", "memory-file"})
