"""`gpuckpt plan` of real jobs: everything at once, nothing touched, for everybody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.root.harness import PATIENCE, exists, state_of, wait_for
from tests.targets import target, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.root.harness import Field

pytestmark = pytest.mark.root

NOBODY = 65534
MANY = """
import ctypes, os, signal, socket
libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p
libc.syscall(425, 4, ctypes.create_string_buffer(120))  # io_uring_setup
s = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(s.getsockname())
f = open('ghost', 'w'); f.write('x' * 3000000); f.flush(); os.unlink('ghost')
i = libc.shmget(0, 4096, 0o1600); libc.shmat(i, None, 0); libc.shmctl(i, 0, None)
if os.fork() == 0:
    libc.unshare(0x04000000 | 0x08000000)  # a host name and System V IPC of its own
    os.kill(os.getpid(), signal.SIGSTOP)
"""
EIGHT = {
    "io-uring",
    "tcp-waiting",
    "deleted-file-large",
    "sysv-shm",
    "unix-peer-outside",
    "pipe-outside",
    "namespace-uts",
    "namespace-ipc",
}


@contextmanager
def job_of_many_troubles(folder: Path) -> Iterator[int]:
    """Start a job that eight things stop: five of its own, two from us, one of its child."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with (
        ours,
        target(folder, MANY, stdout=write, stderr=write, pass_fds=(theirs.fileno(),)) as pid,
    ):
        theirs.close()
        os.close(write)
        assert os.read(read, 5) == b"ready"
        below = Path(f"/proc/{pid}/task/{pid}/children")
        wait_until(lambda: [state_of(int(one)) for one in below.read_text().split()] == ["T"])
        try:
            yield pid
        finally:
            os.close(read)


def snapshot(pid: int, *folders: Path) -> dict[str, object]:
    """Return what a plan must not change: states, descriptors, limits, files."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found: dict[str, object] = {}
    for one in (pid, *map(int, below)):
        found[f"state {one}"] = state_of(one)
        found[f"fds {one}"] = sorted(fd.name for fd in Path(f"/proc/{one}/fd").iterdir())
        found[f"maps {one}"] = Path(f"/proc/{one}/maps").read_text()
    for folder in folders:
        found[str(folder)] = {
            str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for path in (folder, *folder.rglob("*"))
        }
    return found


def test_eight_things_at_once_are_all_named_and_nothing_is_touched(
    place: Field, tmp_path: Path
) -> None:
    out, state = tmp_path / "images", tmp_path / "state"
    out.mkdir()
    with job_of_many_troubles(tmp_path) as pid:
        options = ("-o", out / "image", "--ghost-limit", "1M")
        before = snapshot(pid, tmp_path)
        answer = place.gpuckpt("plan", pid, *options, GPUCKPT_STATE_DIR=str(state))
        after = snapshot(pid, tmp_path)
        # the folder of the image was written to, and has nothing of it left
        for one in (before, after):
            one[str(tmp_path)].pop(str(out))  # type: ignore[attr-defined]
        assert after == before
        assert not list(out.iterdir())
        told = answer.json
        stopping = {one["id"] for one in told["result"]["findings"] if one["severity"] == "blocker"}
        assert stopping == EIGHT
        assert (answer.code, answer.error) == (4, "blocked")
        assert told["error"]["findings"] == told["result"]["findings"]
        assert not told["result"]["can_dump"]
        # the dump says the very same
        refused = place.gpuckpt("dump", pid, *options, GPUCKPT_STATE_DIR=str(state))
        assert refused.json["error"]["findings"] == told["result"]["findings"]
        assert refused.code == 4
        assert not list(out.iterdir())


def test_what_options_lift_is_lifted_by_the_next_line(place: Field) -> None:
    """The command that plan gives is typed as it is, and dumps the job."""
    code = (
        "import os, socket\n"
        "f = open('ghost', 'w'); f.write('x' * 3000000); f.flush(); os.unlink('ghost')\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(s.getsockname()); d, _ = s.accept()\n"
    )
    image = place.folder / "image"
    with target(place.folder, code) as pid:
        planned = place.gpuckpt("plan", pid, "-o", image, "--ghost-limit", "1M")
        assert planned.error == "blocked"
        (line,) = planned.json["result"]["next"]
        assert line.startswith(f"gpuckpt dump {pid} -o {image} --ghost-limit ")
        tcp = planned.json["result"]["tcp"]
        assert tcp["policy"] == "established"
        assert tcp["reason"].startswith("1 TCP connection with both ends in the tree")
        forecast = planned.json["result"]["forecast"]
        assert forecast["write_speed"] > 0
        done = place.gpuckpt(*line.split()[1:], "--leave-running").result
        assert done["running"]
        assert done["tcp"] == {"policy": "established", "by_itself": True}
        assert done["expected_pause"] > 0
        # the next forecast has learned from it
        planned = place.gpuckpt("plan", pid, "--ghost-limit", "8M")
        assert "receipt" in planned.result["forecast"]["pause"]["parts"]["lock"]["basis"]


# once as root, for everything to be loaded from folders that may be root's, then as nobody
AS_NOBODY = f"""
import contextlib, ctypes, io, os, sys
from gpuckpt.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main.run(sys.argv[1:])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
sys.exit(main.run(sys.argv[1:]))
"""
DROP = (
    f"import ctypes, os, socket, time\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder that everybody may look into."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def as_nobody(folder: Path, *argv: object, **env: str) -> dict[str, Any]:
    """Run gpuckpt as a user without any right, and return its JSON."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, argv), "--json"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/"} | env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_user_with_an_old_criu_hears_everything_at_once(open_folder: Path) -> None:
    """O01: no root, an old CRIU, nowhere to write, and a job with three troubles of its own."""
    criu = open_folder / "criu"
    criu.write_text("#!/bin/sh\necho Version: 3.17\n")
    criu.chmod(0o755)
    code = (
        "import ctypes, os, socket, time\n"
        "ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(s.getsockname())\n"
        "f = open('ghost', 'w'); f.write('x' * 3000000); f.flush(); os.unlink('ghost')\n" + DROP
    )
    state = "/proc/none/state"
    with target(open_folder, code) as pid:
        told = as_nobody(
            open_folder,
            *("plan", pid, "-o", "/root/image", "--ghost-limit", "1M"),
            GPUCKPT_CRIU=str(criu),
            GPUCKPT_STATE_DIR=state,
        )
        named = {one["id"] for one in told["result"]["findings"] if one["severity"] == "blocker"}
        assert named >= {
            "criu-too-old",
            "not-privileged",
            "not-writable",
            "io-uring",
            "tcp-waiting",
            "deleted-file-large",
        }
        places = {one["object"] for one in told["result"]["findings"] if "writable" in one["id"]}
        assert places == {"/root", state}
        assert told["exit_code"] == 4
        # and the dump does not stop at the first of them either
        refused = as_nobody(
            open_folder,
            *("dump", pid, "-o", "/root/image", "--ghost-limit", "1M"),
            GPUCKPT_CRIU=str(criu),
            GPUCKPT_STATE_DIR=state,
        )
        assert {one["id"] for one in refused["error"]["findings"]} >= named
    with target(open_folder, "") as pid:  # of another user: it cannot be looked into
        told = as_nobody(open_folder, "plan", pid, GPUCKPT_CRIU=str(criu))
        unseen = [one for one in told["result"]["findings"] if one["object"] == f"/proc/{pid}/fd"]
        assert [one["id"] for one in unseen] == ["not-privileged"]
        assert told["exit_code"] == 3


def test_a_shell_that_runs_gpuckpt_names_the_jobs_below_it(place: Field) -> None:
    """The pid that an operator sees first is that of the shell in front of him."""
    script = 'setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! >"$1"; shift; "$@"; exit $?'
    note = place.folder / "pid"
    done = subprocess.run(
        # bash, then sh, which becomes gpuckpt and is told bash's pid
        [
            *("bash", "-c", script, "bash", note, "sh", "-c", 'exec "$@" $PPID', "sh"),
            *place.command("plan", "--json"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    below = int(note.read_text())
    try:
        told = json.loads(done.stdout)
        assert told["error"]["name"] == "forbidden_process"
        assert f"process {below}" in told["error"]["hint"]
    finally:
        os.kill(below, signal.SIGKILL)
        wait_for("the sleeper is gone", lambda: not exists(below))
