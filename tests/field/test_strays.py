"""C, R: what left the tree of a job, and what would come back without its program."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import exists, wait_for
from tests.targets import facts, findings, target, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.root.harness import Field

pytestmark = pytest.mark.root

# forks a child that forks another and ends: the other is init's, but in the session of the job
DAEMON = """
import os, time
child = os.fork()
if child == 0:
    if os.fork():
        os._exit(0)
    open("stray.new", "w").write(str(os.getpid()))
    os.rename("stray.new", "stray")
    time.sleep(600)
os.waitpid(child, 0)
"""
MEMORY = """
import os, sys
program = os.memfd_create("program", 0)
os.write(program, open("/bin/sleep", "rb").read())
if os.fork() == 0:
    os.execve(program, ["sleep", "600"], {})
os.close(program)
"""


def test_a_helper_that_left_the_tree(place: Field) -> None:
    """R01: it keeps the number of the session; told before the dump, and by name at the restore."""
    note = place.folder / "stray"
    with target(place.folder, DAEMON) as pid:
        wait_until(note.exists)
        stray = int(note.read_text())
        place.restored += [stray, pid]
        (found,) = findings(pid)
        assert (found.id, found.blocks, found.pid) == ("session-outside", False, pid)
        assert f"Process {stray} " in found.reason
        image = place.folder / "image"
        assert place.gpuckpt("dump", pid, "-o", image).code == 0
        os.waitpid(pid, 0)
        answer = place.gpuckpt("restore", image)
        assert (answer.code, answer.error) == (8, "host_mismatch")
        taken = {one["id"]: one for one in answer.json["error"]["findings"]}["pid-taken"]
        assert taken["pid"] == stray
        os.kill(stray, signal.SIGKILL)
        wait_for("it is gone", lambda: not exists(stray))
        assert place.gpuckpt("restore", image, "--settle", "0").code == 0


def test_a_program_that_is_no_file(tmp_path: Path) -> None:
    """R07: CRIU dumps it, and cannot restore what it made: so it is refused beforehand."""
    with target(tmp_path, MEMORY) as pid:
        wait_until(lambda: [one.id for one in findings(pid)] == ["program-in-memory"])
        known = facts(pid)
        assert findings(pid)[0].blocks
        images = tmp_path / "images"
        (images / "lib").mkdir(parents=True)
        criu = [os.environ["GPUCKPT_CRIU"], "--no-default-config", "--libdir", str(images / "lib")]
        common = ["-D", str(images), "--manage-cgroups=ignore"]
        done = subprocess.run([*criu, "dump", "-t", str(pid), *common], check=False, timeout=60)
        os.waitpid(pid, 0)
        wait_for("all pids are free", lambda: not any(map(exists, known.tree.pids)))
        back = subprocess.run([*criu, "restore", "-d", *common], check=False, timeout=60)
        assert (done.returncode, bool(back.returncode)) == (0, True)
