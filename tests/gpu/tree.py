"""Jobs of several processes for GPU tests: started by `gpuckpt run`, ended without harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from gpuckpt.errors import GpuckptError
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda import choose
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.run import Runner
from tests.gpu.job import JOBS, bring_back, suspend, wait
from tests.root.harness import lines_of

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 90.0  # seconds; four ranks import PyTorch at the same time
POLITE_END = 30.0  # seconds
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"),
)
# NVLS memory makes a driver's checkpoint hang; the rest keeps ranks to this host
SETTINGS = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


def script(name: str, *arguments: object) -> tuple[str, ...]:
    """Return the command line of one of the test jobs."""
    return (sys.executable, str(JOBS / name), *map(str, arguments))


def torchrun(ranks: int, name: str, *arguments: object) -> tuple[str, ...]:
    """Return the command line of a test job under torchrun."""
    return (*TORCHRUN, str(ranks), str(JOBS / name), *map(str, arguments))


class Tree:
    """One job, with the logs of its processes in a folder of its own."""

    def __init__(self, folder: Path, argv: tuple[str, ...], *options: str, **settings: str) -> None:
        """Start it by `gpuckpt run` with these options; `named` waits for its root's pid."""
        self.folder = folder
        self.away = False  # dumped, and not restored yet
        self._seen: set[psutil.Process] = set()
        paths = os.pathsep.join((str(JOBS), *sys.path))
        command = [sys.executable, "-m", "gpuckpt", "run", *options]
        with (folder / "run.err").open("wb") as story:
            self.parent = subprocess.Popen(
                [*command, "--log", str(folder / "output.log"), "--", *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=story,
                env={**os.environ, **SETTINGS, "PYTHONPATH": paths, **settings},
            )
        self.pid = 0

    def named(self) -> None:
        """Wait until the root's pid has been told."""
        self.wait_for(self._has_name, "pid of the job")

    def _has_name(self) -> bool:
        for line in lines_of(self.folder / "run.err"):
            if "is the job's root" in line:
                self.pid = int(line.partition("process ")[2].split()[0])
        return self.pid > 0

    def wait_for(self, what: object, name: str, patience: float = PATIENCE) -> None:
        """Wait until something holds; fail with the last lines of all logs."""
        assert callable(what)
        try:
            wait(what, name, self._over, patience)
        except pytest.fail.Exception as why:
            pytest.fail(f"{why}\n{self.tail()}")

    def _over(self) -> str:
        """Say that it failed, or is gone without having come to its end."""
        failed = [line for log in self.logs() for line in lines_of(log) if "failed" in line]
        if failed:
            return f"the job says {failed[0]!r}"
        status = self.parent.poll()
        if status is None or self.away or self.members() or self.ended():
            return ""
        return f"the job is gone, gpuckpt run ended with {status}"

    def logs(self) -> list[Path]:
        """All logs that its processes write."""
        return sorted(path for path in self.folder.glob("*.log") if path.name != "output.log")

    def lines(self) -> dict[str, list[str]]:
        """What each log says so far, but how its root watched over it."""
        return {path.name: lines_of(path) for path in self.logs() if path.name != "crew.log"}

    def tail(self) -> str:
        """The end of every file that tells something."""
        files = dict.fromkeys(self.logs(), 4) | {self.folder / "output.log": 30}
        files |= {self.folder / "run.err": 8}
        ends = (f"--- {one.name}\n" + "\n".join(lines_of(one)[-n:]) for one, n in files.items())
        return "\n".join((*ends, f"--- processes\n{self._processes()}"))

    def _processes(self) -> str:
        found = []
        for one in sorted(self._seen, key=lambda one: one.pid):
            with suppress(psutil.Error):
                found.append(f"{one.pid} {one.status()} {' '.join(one.cmdline())[-120:]}")
        return "\n".join(found)

    def ended(self) -> bool:
        """Whether every log says that its process has come to its end."""
        found = self.lines()
        return bool(found) and all(lines[-1:] == ["end"] for lines in found.values())

    def members(self) -> list[int]:
        """All pids it has now; those are remembered, so that each will be ended."""
        if not self.away:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(self.pid)
                self._seen |= {root, *root.children(recursive=True)}
        self._seen = {one for one in self._seen if _lives(one)}
        return sorted(one.pid for one in self._seen)

    def cuda_pids(self) -> list[int]:
        """Its pids that the driver knows."""
        cuda, pids = choose(Runner()), Proc().cuda_candidates(self.members())
        states = cuda.states(list(pids))
        cuda.close()
        return [pid for pid, state in states.items() if state is not CudaState.NONE]

    def progress(self) -> dict[str, int]:
        """How many lines each log has."""
        return {name: len(lines) for name, lines in self.lines().items()}

    def goes_on(self, more: int = 5, but: str = "", patience: float = PATIENCE) -> None:
        """Wait until every log but one has grown by some lines."""
        before = {name: lines for name, lines in self.progress().items() if name != but}
        assert before, self.tail()

        def grown() -> bool:
            now = self.progress()
            return all(now[name] >= lines + more for name, lines in before.items())

        self.wait_for(grown, f"{more} lines more in each log than {before}", patience)

    def began(self, logs: int, more: int = 3) -> None:
        """Wait until so many logs have some lines each."""

        def all_here() -> bool:
            found = self.progress()
            return len(found) >= logs and all(lines >= more for lines in found.values())

        self.wait_for(all_here, f"{logs} logs with {more} lines each")
        self.members()

    def end(self) -> None:
        """End it politely, whatever state a failed test has left it in; see Job.end."""
        pids = self.members()
        bring_back(list(Proc().cuda_candidates(pids)))
        for pid in [self.pid] if self.pid in pids else pids:
            _send(pid, signal.SIGTERM)
        if not self._gone(POLITE_END):
            print(f"\nnot ended within {POLITE_END:g} s:\n{self.tail()}")
            for pid in self.members():
                with suppress(GpuckptError):
                    if pid in Proc().cuda_candidates([pid]):
                        suspend(pid)
                _send(pid, signal.SIGKILL)
            self._gone(POLITE_END)
        self.parent.kill()  # it holds nothing, and waits for nobody any more
        self.parent.wait(POLITE_END)

    def _gone(self, patience: float) -> bool:
        deadline = time.monotonic() + patience
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
