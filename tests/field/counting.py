"""Jobs that only count, and what a field test does to them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.root.harness import exists, lines_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.root.harness import Field

JOBS = Path(__file__).parent / "jobs"
GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class Counter:
    """One counting job of a test's place, and its images."""

    def __init__(self, place: Field, name: str = "count") -> None:
        """Start it and see it count."""
        self.place, self.log = place, place.folder / f"{name}.log"
        self.image = place.folder / f"{name}.image"
        self.job = place.start(counting(self.log))
        self.pid = self.job.pid
        self.goes_on()

    def goes_on(self) -> None:
        """See it count on, without a number lost or twice."""
        before = len(lines_of(self.log))
        wait_for(f"{self.log.name} goes on", lambda: len(lines_of(self.log)) > before + 2)
        lines = lines_of(self.log)
        assert lines == [str(number) for number in range(len(lines))]

    def dump(self, *args: object, **env: str) -> None:
        """Dump it and see it gone."""
        done = self.place.gpuckpt("dump", self.pid, "-o", self.image, *args, **env)
        assert done.result["image"] == str(self.image)
        wait_for("the pid is free", lambda: not exists(self.pid))

    def restore(self, *args: object, **env: str) -> None:
        """Bring it back and see it go on."""
        options = ("--settle", "0.1", *args)
        done = self.place.gpuckpt("restore", self.image, *options, **env).result
        self.place.restored.append(self.pid)
        assert done["root_pid"] == self.pid
        self.goes_on()

    def end(self) -> None:
        """End it and see its pid free."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        wait_for("the pid is free", lambda: not exists(self.pid))


def counting(log: Path) -> list[str]:
    """Return the command line of a counting job."""
    return [sys.executable, "-S", str(JOBS / "counter.py"), str(log)]


@contextmanager
def cgroup(kind: str, limit: int | None = None) -> Iterator[Path]:
    """Make a control group for a while: of version 2 if `kind` is "", else of that controller."""
    places = [Path("/sys/fs/cgroup") / kind] if kind else GROUPS
    place = next(one for one in reversed(places) if (one / "cgroup.procs").exists())
    folder = place / f"gpuckpt-field-{os.getpid()}"
    folder.mkdir()
    if limit is not None:
        (folder / "memory.limit_in_bytes").write_text(str(limit))
    try:
        yield folder
    finally:
        wait_for(f"{folder} is empty", lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


def inside(group: Path, command: list[str]) -> list[str]:
    """Return a command line that first goes into a control group."""
    return ["/bin/sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group), *command]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever that is."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
