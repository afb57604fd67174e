"""Real jobs, the real program, and bounded waits for the root tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.flow.sight.tcp import policy
from gpuckpt.model import TcpPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.flow.sight.facts import DumpFacts

JOBS = Path(__file__).parent / "jobs"
# generous: two slow cores may be busy with other tests
PATIENCE = 60.0


def wait_for(what: str, ready: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Poll until `ready` gives something true and return it; fail with `what` otherwise."""
    ends = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < ends, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.02)
    return found


def exists(pid: int) -> bool:
    """Whether the pid is in use, be it by a zombie."""
    return Path(f"/proc/{pid}").exists()


def ended(pid: int) -> bool:
    """Whether the process has come to its end, be there a zombie left of it or not."""
    try:
        return state_of(pid) in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def state_of(pid: int) -> str:
    """Return the state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def lines_of(path: Path) -> list[str]:
    """Return the complete lines of a log that is being written."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def criu_dumps(known: DumpFacts, images: Path, *prefix: str, timeout: int = 5) -> bool:
    """Dump a tree for real, leave it running, and say whether CRIU could.

    `prefix` starts CRIU by another program, `timeout` is CRIU's for stopping all threads.
    """
    images.mkdir()
    (images / "lib").mkdir()
    needs = known.needs
    kept = policy(known.look.tcp, TcpPolicy.NONE) is TcpPolicy.ESTABLISHED
    options = [
        *(["--shell-job"] if needs.shell_job else []),
        *(["--file-locks"] if needs.file_locks else []),
        *(["--link-remap"] if needs.link_remap else []),
        *(["--tcp-established", "--network-lock", "nftables"] if kept else []),
        *(["--ext-unix-sk"] if needs.external_unix else []),
    ]
    command = [*prefix, os.environ["GPUCKPT_CRIU"], "dump", "--no-default-config", "-R"]
    command += ["--timeout", str(timeout)]
    command += ["--manage-cgroups=ignore", "--libdir", str(images / "lib"), "-D", str(images)]
    command += ["-t", str(known.tree.root.pid), "-o", "log", *options]
    return subprocess.run(command, check=False, timeout=60, capture_output=True).returncode == 0


@contextmanager
def mounted(folder: Path, kind: str = "tmpfs", options: str = "defaults") -> Iterator[Path]:
    """Mount something on a new folder for a while."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", kind, "-o", options, "gpuckpt-test", folder], check=False)
    if done.returncode:
        pytest.skip(f"{kind} cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@dataclass
class Answer:
    """What a run of gpuckpt came to."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def result(self) -> dict[str, Any]:
        """The result of a run that must have succeeded."""
        assert self.code == 0, (self.code, self.stdout, self.stderr)
        found: dict[str, Any] = self.json["result"]
        return found

    @property
    def error(self) -> str:
        """The name of the error of a run that must have failed."""
        assert self.code != 0, (self.code, self.stdout, self.stderr)
        return str(self.json["error"]["name"])


@dataclass
class Field:
    """One test's place: its folder, its jobs, and the end of them all."""

    folder: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    peak: int = 0  # bytes
    patience: float = 300.0  # seconds for one run of gpuckpt
    variables: dict[str, str] = field(default_factory=dict)  # for every run of gpuckpt

    def job(self, script: str, *args: object) -> subprocess.Popen[bytes]:
        """Start one of our jobs as a job should be started: own session, output in files."""
        command = [sys.executable, str(JOBS / script), str(self.folder), *map(str, args)]
        return self.start(command)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start any program in a session of its own."""
        with (self.folder / "output").open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.folder,
            )
        self.children.append(child)
        # a parent that waits at once, as a shell would: a dump must find the pid free
        threading.Thread(target=child.wait, daemon=True).start()
        return child

    def command(self, *args: object) -> list[str]:
        """Return the command line of gpuckpt with these arguments."""
        return [sys.executable, "-m", "gpuckpt", *map(str, args)]

    def gpuckpt(self, *args: object, **env: str) -> Answer:
        """Run gpuckpt with --json to its end."""
        child = subprocess.Popen(
            self.command(*args, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.variables | env,
        )
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(child.pid, over))
        watcher.start()
        try:
            stdout, stderr = child.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            child.terminate()  # it puts back what it has taken
            stdout, stderr = child.communicate(timeout=self.patience)
            pytest.fail(f"gpuckpt {args} took more than {self.patience:g} s: {stdout}{stderr}")
        finally:
            over.set()
            watcher.join()
        return Answer(child.returncode, stdout, stderr)

    def _watch(self, pid: int, over: threading.Event) -> None:
        """Remember the most memory that a run of gpuckpt ever had, its children left out."""
        while not over.wait(0.02):
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                for line in status.splitlines():
                    if line.startswith("VmHWM:"):
                        self.peak = max(self.peak, int(line.split()[1]) << 10)

    def dump(self, child: subprocess.Popen[bytes], *args: object) -> Path:
        """Dump a job that must go, see that it is gone, and return the image."""
        image = self.folder / "image"
        assert self.gpuckpt("dump", child.pid, "-o", image, *args).result["image"] == str(image)
        child.wait(PATIENCE)
        wait_for("the pid is free", lambda: not exists(child.pid))
        return image

    def restore(self, image: Path, *args: object) -> int:
        """Restore an image that must come back, and return the root's pid."""
        result = self.gpuckpt("restore", image, "--settle", "0.2", *args).result
        self.restored += result["pids"]
        return int(result["root_pid"])

    def ask(self, line: str = "state") -> dict[str, Any]:
        """Ask worker.py how things stand."""
        port = int(wait_for("the worker listens", lambda: _text(self.folder / "port")))
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            client.sendall(f"{line}\n".encode())
            found: dict[str, Any] = json.loads(client.makefile().readline() or "{}")
        return found

    def close(self) -> None:
        """End every job, restored ones by the pids that the restore gave."""
        for child in self.children:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # what it has forked included
            child.wait()
        for pid in self.restored:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.restored:
            # nobody but init is their parent, and it may be slow to wait for them
            wait_for(f"process {pid} has ended", lambda pid=pid: ended(pid))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
