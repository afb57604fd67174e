"""Jobs on a GPU, and what bare CRIU needs around it there: the driver's copies, out and in."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.bench.jobs import Job
from tests.bench.measure import CommandFailed
from tests.bench.ways import environ
from tests.root.harness import exists, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bench.measure import Cost
    from tests.bench.ways import Way

PATIENCE: Final = 600.0  # seconds for one call of the driver
POLITE: Final = 60.0  # seconds to end by itself


class Calls:
    """A process that makes the driver's calls; it is started once, which nobody is charged for."""

    def __init__(self) -> None:
        """Start it."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.calls"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ(),
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        self._read("start")

    def do(self, action: str, pid: int) -> str:
        """Make one call, which must succeed; return what it gave."""
        assert self._child.stdin
        self._child.stdin.write(f"{action} {pid}\n".encode())
        found = self._read(f"{action} of {pid}")
        if found.startswith("failed"):
            raise CommandFailed(f"{action} of {pid} {found}")
        return found

    def _read(self, what: str) -> str:
        assert self._child.stdout
        if not select.select([self._child.stdout], [], [], PATIENCE)[0]:
            raise CommandFailed(f"the driver did not come back from {what} in {PATIENCE:g} s")
        found = self._child.stdout.readline().decode().strip()
        if not found:
            raise CommandFailed(f"the process for the driver's calls ended at {what}")
        return found

    def close(self) -> None:
        """End it; it is in no call."""
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait()


class GpuJob(Job):
    """A job with CUDA, which must never be killed while it has its state on the GPU.

    On one driver (595, open module) that took the host down after a restore.
    """

    calls: Calls

    def end(self) -> None:
        """End it by SIGTERM; suspend it before it is killed, if that does not help."""
        if not exists(self.pid):
            return
        if state_of(self.pid) not in "tTZ" and self._state() in {"running", "locked"}:
            with suppress(CommandFailed):
                self.calls.do("unlock", self.pid)
            os.kill(self.pid, signal.SIGTERM)
            try:
                wait_for("the job ends by itself", lambda: not exists(self.pid), POLITE)
            except AssertionError:
                self.calls.do("lock", self.pid)
                self.calls.do("checkpoint", self.pid)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # gone, stopped without a state, or suspended
        self.gone()

    def _state(self) -> str:
        """Return what the driver says; "running" if it does not: then it is asked politely."""
        try:
            return self.calls.do("state", self.pid)
        except CommandFailed:
            return "running"


@dataclass(frozen=True)
class OnGpu:
    """A way without gpuckpt, with the driver's calls around it."""

    inner: Way
    calls: Calls

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def tmpfs(self) -> bool:
        return self.inner.tmpfs

    @property
    def pauses(self) -> bool:
        return self.inner.pauses

    def pause(self, job: Job, folder: Path) -> Cost:
        began = time.monotonic()
        self._take(job.pid)
        try:
            cost = self.inner.pause(job, folder)
        finally:
            self._give(job.pid)
        return replace(cost, began=began, ended=time.monotonic())

    def dump(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        began = time.monotonic()
        parts = self._take(job.pid)
        try:
            cost, more = self.inner.dump(job, folder)
        except BaseException:
            if exists(job.pid):
                self._give(job.pid)
            raise
        parts["part stream"] = cost.seconds
        return replace(cost, began=began), parts | more

    def sync(self, folder: Path) -> Cost | None:
        return self.inner.sync(folder)

    def files(self, folder: Path) -> list[Path]:
        return self.inner.files(folder)

    def restore(self, job: Job, folder: Path) -> tuple[Cost, dict[str, float]]:
        cost, parts = self.inner.restore(job, folder)
        more = self._give(job.pid)
        whole = replace(cost, ended=time.monotonic())
        return whole, {"part criu": cost.seconds} | parts | more

    def _take(self, pid: int) -> dict[str, float]:
        return dict(self._timed(pid, {"lock": "part lock", "checkpoint": "part gpu-out"}))

    def _give(self, pid: int) -> dict[str, float]:
        return dict(self._timed(pid, {"restore": "part gpu-in", "unlock": "part unlock"}))

    def _timed(self, pid: int, actions: dict[str, str]) -> Iterator[tuple[str, float]]:
        for action, name in actions.items():
            began = time.monotonic()
            self.calls.do(action, pid)
            yield name, time.monotonic() - began
