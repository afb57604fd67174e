"""A job that looks from outside as if it used a GPU, and the stand-in for its driver.

The job holds a device file until the driver checkpoints it; call processes and CRIU are real.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from tests.fakes.cuda import FakeDriver
from tests.root.harness import lines_of, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from gpuckpt.model import Gpu
    from tests.root.harness import Answer, Field

FAKES = Path(__file__).parent.parent / "fakes"
GPU_JOB = FAKES / "gpu_job.py"
NVML = FAKES / "nvml"
DRIVER = "580.159.04"


class Stage:
    """A job with a GPU and the driver that knows it."""

    def __init__(self, place: Field, folder: Path, device: Path) -> None:
        self.place = place
        self.driver = FakeDriver(folder)
        self.log = place.folder / "log"
        self.device = device
        self.environ = self.driver.environ
        device.touch()

    def start(self, mib: int = 1, *before: str) -> subprocess.Popen[bytes]:
        """Start the job, behind the words `before`, and see it count."""
        argv = [*before, sys.executable, str(GPU_JOB), str(self.log), str(self.device), str(mib)]
        job = self.place.start(argv)
        self.counts_on()
        self.driver.put(job.pid, device=str(self.device))
        return job

    def start_ranks(self, number: int) -> tuple[subprocess.Popen[bytes], list[int]]:
        """Start a job of several ranks below a launcher; return it and the ranks' pids."""
        one = f'"$0" {GPU_JOB} {self.log}.$rank {self.device} &'
        ranks = " ".join(map(str, range(number)))
        script = f"for rank in {ranks}; do {one} done; wait"
        launcher = self.place.start(["sh", "-c", script, sys.executable])
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        logs = [self.log.with_name(f"{self.log.name}.{rank}") for rank in range(number)]
        wait_for("all ranks count", lambda: all(len(lines_of(log)) > 2 for log in logs))
        pids = [int(pid) for pid in children.read_text().split()]
        self.place.restored += pids  # to be ended by the pid: the launcher does not take them along
        for pid in pids:
            self.driver.put(pid, device=str(self.device))
        return launcher, pids

    def gpuckpt(self, *args: object) -> Answer:
        """Run gpuckpt with this driver."""
        return self.place.gpuckpt(*args, **self.environ)

    def board(self, gpus: Sequence[Gpu], uses: Sequence[tuple[int, str, int]] = ()) -> None:
        """Let NVML tell of these GPUs, and of who holds how many bytes of which."""
        told = self.driver.folder / "nvml.json"
        listed = [to_builtins(gpu) for gpu in gpus]
        told.write_text(json.dumps({"driver": DRIVER, "gpus": listed, "uses": list(uses)}))
        path = f"{NVML}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.environ = self.driver.environ | {"FAKE_NVML": str(told), "PYTHONPATH": path}

    def counts_on(self) -> None:
        """Wait until the job has counted on, without losing or repeating a number."""
        seen = len(lines_of(self.log))
        wait_for("the job counts", lambda: len(lines_of(self.log)) > seen + 2)
        lines = lines_of(self.log)
        assert lines == [f"tick {number}" for number in range(1, len(lines) + 1)]

    def actions(self) -> list[str]:
        """Return what the driver was asked to do, in order."""
        return [line.split()[1] for line in self.driver.calls()]
