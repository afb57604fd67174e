"""Jobs started by `gpuckpt run`: what they get, and that they can be dumped and restored."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import PATIENCE, lines_of, state_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.root.harness import Field

pytestmark = pytest.mark.root

# looks at itself, then counts in chatter; a ring is asked for with the raw call
JOB = """
import ctypes, itertools, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(256))
print("ring", ring, ctypes.get_errno())
print("leader", os.getsid(0) == os.getpid(), "stdin", os.readlink("/proc/self/fd/0"))
print("p2p", os.environ.get("NCCL_P2P_DISABLE"), "started", os.environ["GPUCKPT_STARTED"])
print("to stderr", file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
for number in itertools.count():
    print("tick", number, flush=True)
    time.sleep(0.02)
"""


def start(place: Field, *options: object) -> subprocess.Popen[str]:
    """Run the job under `gpuckpt run`, as from a script whose output goes to pipes."""
    return subprocess.Popen(
        place.command("run", *options, "--", sys.executable, "-c", JOB),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.folder,
    )


def root_pid(parent: subprocess.Popen[str]) -> int:
    """Read the job's pid from the story of its parent."""
    assert parent.stderr is not None
    line = next(line for line in parent.stderr if "the job's root" in line)
    return int(line.partition("process ")[2].split()[0])


def test_a_job_started_here_comes_back_and_writes_on(place: Field) -> None:
    log = place.folder / "job.log"
    parent = start(place, "--profile", "nccl", "--log", log)
    pid = root_pid(parent)
    wait_for("the job counts", lambda: "tick 5" in lines_of(log))
    assert sorted(lines_of(log)[:4]) == [
        "leader True stdin /dev/null",
        "p2p 1 started nccl",
        "ring -1 38",
        "to stderr",
    ]
    assert place.gpuckpt("plan", pid, "-o", place.folder / "image").result["findings"] == []
    image = place.folder / "image"
    assert place.gpuckpt("dump", pid, "-o", image).code == 0
    shown, story = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 128 + signal.SIGKILL
    assert f"`gpuckpt restore {image}`" in story
    assert shown.splitlines() == lines_of(log), "the parent shows what the job wrote"
    last = len(lines_of(log))
    assert place.restore(image) == pid
    wait_for("the job writes on", lambda: len(lines_of(log)) > last + 5)
    ticks = [line for line in lines_of(log) if line.startswith("tick")]
    assert ticks == [f"tick {number}" for number in range(len(ticks))]


def test_signals_and_the_exit_status_are_passed_on(place: Field) -> None:
    logs = place.folder / "logs"
    logs.mkdir()
    parent = start(place, "--log", logs)
    root_pid(parent)
    wait_for("the job counts", lambda: "tick 5" in lines_of(logs / "stdout.log"))
    assert lines_of(logs / "stderr.log") == ["to stderr"]
    parent.send_signal(signal.SIGTERM)
    parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 7


def test_a_shell_that_is_interrupted_takes_its_children_along(place: Field) -> None:
    log = place.folder / "job.log"
    command = place.command("run", "--log", log, "--", "sh", "-c", "sleep 600; echo after")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as parent:
        pid = root_pid(parent)
        wait_for("the shell waits", lambda: state_of(pid) == "S")
        parent.send_signal(signal.SIGINT)
        parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 128 + signal.SIGINT
    assert "after" not in lines_of(log)


@pytest.mark.parametrize(
    ("program", "status"), [("no-such-program", 127), ("/dev/null", 126), ("true", 0)]
)
def test_what_a_shell_would_answer(place: Field, program: str, status: int) -> None:
    assert place.gpuckpt("run", "--log", place.folder / "log", "--", program).code == status


def test_output_that_goes_to_a_file_already_stays_there(place: Field, tmp_path: Path) -> None:
    own = tmp_path / "slurm.out"
    with own.open("w") as file:
        file.write("before\n")
        file.flush()
        command = place.command("run", "-q", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
        done = subprocess.run(command, stdout=file, stderr=file, timeout=PATIENCE, check=False)
    assert done.returncode == 3
    assert own.read_text() == "before\nout\nerr\n"
