"""Jobs to be measured, as the bench holds them: started, asked, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tests.bench.pulse import PAUSE
from tests.bench.ways import environ
from tests.root.harness import ended, exists, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PATIENCE: Final = 600.0  # seconds to fill the memory, or to go through it
GONE: Final = 60.0


class JobLost(Exception):
    """The job is not what it was, or not there at all."""


class Job:
    """One job, in a folder of its own; the same one after a restore."""

    def __init__(self, module: str, folder: Path, words: Sequence[str], processes: int = 1) -> None:
        """Start a module of ours; `filled` waits until it is as it shall be dumped."""
        self.folder = folder
        self._asks = 0
        self._log = folder / "job.log"
        self._names = [folder / f"ready-{rank}" for rank in range(processes)]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", f"tests.bench.{module}", str(folder), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environ(),
                start_new_session=True,
                cwd="/",
            )
        self.pid = self._child.pid
        self.pids = [self.pid]
        # a parent that waits at once, as a shell would: nobody then waits for the zombie's pid
        threading.Thread(target=self._child.wait, daemon=True).start()

    def filled(self) -> None:
        """Wait until its memory is filled."""
        self._await("the memory is filled", lambda: all(name.exists() for name in self._names))
        self.pids = [int(name.read_text()) for name in self._names]

    def ask(self, wanted: str) -> list[Any]:
        """Ask every process for "gaps" or its "digest"."""
        self._asks += 1
        new = self.folder / ".ask.new"
        new.write_text(f"{self._asks} {wanted}")
        new.rename(self.folder / "ask")
        answers = [self.folder / f"answer-{self._asks}-{at}" for at in range(len(self.pids))]
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR1)
        self._await(f"answer to {wanted}", lambda: all(one.exists() for one in answers))
        found = [json.loads(one.read_text()) for one in answers]
        for one in answers:
            one.unlink()
        return found

    def stood(self, since: float) -> tuple[float, float]:
        """Return from when to when it stood still, for a stand that ended after `since`.

        It stands as soon as one process does, and goes on when all of them do. All by the
        monotonic clock; jobs tell wall-clock time, which nobody sets while this runs.
        """
        ahead = time.time() - time.monotonic()
        longest = [
            max(
                (gap for gap in gaps if gap[1] - ahead > since),
                key=lambda gap: gap[1] - gap[0],
                default=(since + ahead, since + ahead + PAUSE),  # it was hardly stopped
            )
            for gaps in self.ask("gaps")
        ]
        began, ended = min(gap[0] for gap in longest), max(gap[1] for gap in longest)
        return began - ahead, ended - ahead

    def gone(self) -> None:
        """Wait until every pid of it is free."""
        wait_for("the job's pids are free", lambda: not any(map(exists, self.pids)), GONE)

    def end(self) -> None:
        """End it, whatever state it is in; nothing if it has ended."""
        if not self._names[-1].exists():  # its forks are not known yet
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        for pid in filter(self._ours, self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.gone()

    def _ours(self, pid: int) -> bool:
        """Whether the pid is still this job's: its command line names the folder."""
        try:
            return os.fsencode(self.folder) in self._cmdline(pid)
        except OSError:
            return False

    def _cmdline(self, pid: int) -> bytes:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read()

    def _await(self, what: str, ready: Callable[[], bool]) -> None:
        def there_or_lost() -> bool:
            if any(map(ended, self.pids)):
                raise JobLost(f"a process ended before {what}: {self._words()}")
            return ready()

        wait_for(what, there_or_lost, PATIENCE)

    def _words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] or "it said nothing"
