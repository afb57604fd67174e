"""What the plan says of processes and their surroundings, and that CRIU says the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools.proc import Proc
from tests.root.harness import JOBS, criu_dumps, lines_of, wait_for
from tests.targets import facts, findings, target, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.root.harness import Field

pytestmark = pytest.mark.root

C = "import ctypes, os, threading, time; c = ctypes.CDLL(None, use_errno=True)\n"
FILTER = C + (
    "import struct; c.prctl(38, 1, 0, 0, 0)\n"
    "b = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000), 8)\n"
    "p = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 1, ctypes.addressof(b)), 16)\n"
    "assert c.prctl(22, 2, p, 0, 0) == 0\n"
)
# before a filter is set: there is no way from one mode to the other
STRICT = C + (
    "if os.fork() == 0:\n"
    " b = ctypes.create_string_buffer(1); r, w = os.pipe(); c.prctl(22, 1, 0, 0, 0)\n"
    " c.read(r, b, 1)\n"
)
VFORK = C + "if os.fork() == 0:\n v = c.syscall(58)\n while v == 0: c.sleep(100)\n"
# in a thread of its own, so that the first thread keeps what it has
FOLDER = C + (
    "def own():\n"
    " assert c.unshare(0x200) == 0; os.chdir('/usr')\n"
    " while 1:\n"
    "  open('{log}', 'w').write(os.getcwd()); time.sleep(0.05)\n"
    "threading.Thread(target=own, daemon=True).start(); time.sleep(0.2)\n"
)


def test_processes_with_habits_are_dumped(tmp_path: Path) -> None:
    """Filters, strict mode, other users' threads, death signals, a changed root."""
    more = (
        "threading.Thread(target=lambda: (c.syscall(117, 65534, 65534, 65534), time.sleep(600)),"
        " daemon=True).start()\n"
        "c.prctl(1, 15); c.mlockall(1); c.prctl(36, 1); os.chroot('/')\n"
    )
    with target(tmp_path, STRICT + FILTER + more) as pid:
        wait_until(lambda: {one.seccomp for one in facts(pid).look.tasks} == {1, 2})
        assert findings(pid) == ()
        assert criu_dumps(facts(pid), tmp_path / "images")
        # a CRIU that is filtered itself may not suspend the filters of others
        under = (sys.executable, "-c", FILTER + "import sys; os.execv(sys.argv[1], sys.argv[1:])")
        assert not criu_dumps(facts(pid), tmp_path / "filtered", *under)


@pytest.mark.parametrize(
    ("code", "name"),
    [(VFORK, "stuck"), (C + "assert c.unshare(0x80) == 0", "namespace-time")],
    ids=["vfork", "time"],
)
def test_processes_that_criu_refuses(tmp_path: Path, code: str, name: str) -> None:
    with target(tmp_path, code) as pid:
        wait_until(lambda: {one.id for one in findings(pid)} == {name})
        assert not criu_dumps(facts(pid), tmp_path / "images", timeout=1)


def test_a_thread_with_a_folder_of_its_own_loses_it(tmp_path: Path) -> None:
    """CRIU reports success on both sides; only the plan tells."""
    log = tmp_path / "folder"
    with target(tmp_path, FOLDER.format(log=log)) as pid:
        wait_until(lambda: log.exists() and log.read_text() == "/usr")
        (found,) = findings(pid)
        assert (found.id, found.pid) == ("thread-apart", pid)
        assert found.object != f"thread {pid}"
        images = tmp_path / "images"
        (images / "lib").mkdir(parents=True)
        criu(images, "dump", "-t", str(pid))
        os.waitpid(pid, 0)
        log.unlink()
        criu(images, "restore", "-d")
        wait_until(lambda: log.exists() and log.read_text() == str(tmp_path))


def criu(images: Path, verb: str, *more: str) -> None:
    command = [os.environ["GPUCKPT_CRIU"], verb, "--no-default-config", "-D", str(images), *more]
    command += ["--manage-cgroups=ignore", "--libdir", str(images / "lib")]
    subprocess.run(command, check=True, timeout=60, capture_output=True)


def test_a_shell_that_starts_another_copy(tmp_path: Path) -> None:
    script = tmp_path / "again.sh"
    script.write_text("while true; do sleep 600; done\n")
    with target(tmp_path, f"import subprocess; subprocess.Popen(['sh', '{script}'])") as pid:
        wait_until(lambda: len(Proc().tree(pid).pids) == 3)
        _, shell, job = Proc().tree(pid).pids
        # found waiting once the child has started its program
        wait_until(lambda: [one.id for one in findings(job)] == ["supervised"])
        (found,) = findings(job)
        assert found.blocks
        assert found.object.startswith(f"process {shell} sh /")
        assert "supervised" not in {one.id for one in findings(job, leave_running=True)}
        assert findings(shell) == ()
        # in this order, or there would be one copy more
        os.kill(shell, signal.SIGKILL)
        os.kill(job, signal.SIGKILL)


def test_a_job_as_it_should_be_started(tmp_path: Path) -> None:
    """Whatever the script that started it does meanwhile, nothing is to be said of the job."""
    script = tmp_path / "start.sh"
    line = "setsid nohup sleep 600 </dev/null >log 2>&1 &"
    script.write_text(f"while true; do\n {line}\n wait\ndone\n")
    with target(tmp_path, f"import subprocess; subprocess.Popen(['sh', '{script}'])") as pid:
        wait_until(lambda: len(Proc().tree(pid).pids) == 3)
        _, shell, job = Proc().tree(pid).pids
        wait_until(lambda: Proc().tree(job).root.comm == "sleep")
        try:
            assert findings(job) == ()
        finally:
            os.kill(shell, signal.SIGKILL)
            os.kill(job, signal.SIGKILL)


def test_a_pane_of_tmux(tmp_path: Path) -> None:
    """The pane's own program closes its window when it goes; one typed in a shell does not."""
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here")

    def tmux(*line: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null", *line]
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
        return subprocess.check_output(command, text=True, **quiet)  # type: ignore[call-overload,no-any-return]

    tmux("new-session", "-d", "exec sleep 600")
    panes: list[int] = []
    try:
        tmux("new-window", "exec sh")
        panes = [int(pid) for pid in tmux("list-panes", "-aF", "#{pane_pid}").split()]
        tmux("send-keys", "sleep 600 &", "Enter")
        wait_until(lambda: len(Proc().tree(panes[1]).pids) == 2)
        typed = Proc().tree(panes[1]).pids[1]
        wait_until(lambda: {one.id for one in findings(typed)} == {"terminal"})
        found = findings(panes[0])
        assert {(one.id, one.blocks) for one in found} == {
            ("terminal", False),
            ("supervised", False),
        }
        assert "tmux" in found[-1].object
        assert criu_dumps(facts(panes[0]), tmp_path / "images")
    finally:
        for pid in [pid for pane in panes for pid in reversed(Proc().tree(pane).pids)]:
            os.kill(pid, signal.SIGKILL)


def test_a_job_that_ends_with_its_parent(place: Field) -> None:
    """The kernel would end it with gpuckpt, after a success was reported."""
    script = [sys.executable, str(JOBS / "bound.py"), str(place.folder), "signal"]
    job = place.start(["env", "SLURM_JOB_ID=41", *script])
    log = place.folder / "log"
    wait_for("the job runs", lambda: lines_of(log))
    image = place.dump(job)
    # the name of what stays as it was is told, its value is nobody's business
    manifest = (image / "manifest.json").read_text()
    assert "SLURM_JOB_ID" in manifest
    assert "SLURM_JOB_ID=" not in manifest
    answer = place.gpuckpt("restore", image)
    assert [one["id"] for one in answer.json["error"]["findings"]] == ["gate-parent-death"]
    written = len(lines_of(log))
    place.restored.append(job.pid)
    again = place.command("restore", image, "--wait", "--settle", "0", "-q")
    waiting = place.start(["env", "SLURM_JOB_ID=42", *again])
    wait_for("the job goes on", lambda: len(lines_of(log)) > written + 3)
    assert lines_of(log)[-1].endswith(" 41")
    waiting.terminate()
    assert waiting.wait(60) == 128 + 15


def test_a_kernel_without_its_server(place: Field) -> None:
    """It ends as soon as it finds another parent: no restore of it is called a success."""
    job = place.job("bound.py", "look", "-f", place.folder / "kernel-1.json")
    wait_for("the kernel runs", lambda: lines_of(place.folder / "log"))
    # what stands in CRIU's own settings is of no consequence
    (place.folder / ".criu").mkdir()
    (place.folder / ".criu/default.conf").write_text("no-such-option\n")
    answer = place.gpuckpt("dump", job.pid, "-o", place.folder / "image", HOME=str(place.folder))
    assert [one["id"] for one in answer.json["error"]["findings"]] == ["jupyter-kernel"]
    image = place.dump(job, "--ignore", "jupyter-kernel")
    answer = place.gpuckpt("restore", image, "--settle", "1")
    assert (answer.code, answer.error) == (11, "verification_failed")
