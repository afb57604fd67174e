"""Semaphores and shared memory of real jobs travel in their images, and come back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import Field, exists, lines_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

SHM = Path("/dev/shm")
STARTED: list[Sharer] = []
# a restore whose gpuckpt dies when all files are placed and CRIU is to be started
DIES = """
import os, sys
from gpuckpt.cli.main import main
from gpuckpt.tools.criu import Criu
Criu.restore = lambda *_: os.kill(os.getpid(), 9)
sys.argv[1:] = ["restore", *sys.argv[1:]]
main()
"""
# a dump that fails at the very last moment, when CRIU's names are removed already
FAILS = """
import sys
from gpuckpt.cli.main import main
from gpuckpt.errors import WriteFailed
from gpuckpt.image.stage import Stage
def commit(*_):
    raise WriteFailed("the disk is full")
Stage.commit = commit
sys.argv[1:] = ["dump", *sys.argv[1:]]
main()
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Leave nothing of any job in /dev/shm, of these jobs alone: others may run their own."""
    yield
    while STARTED:
        STARTED.pop().forget()


class Sharer:
    """One job, and what it has in /dev/shm."""

    def __init__(self, place: Field, kind: str = "") -> None:
        self.place = place
        self.name = f"{os.getpid()}-{len(place.children)}"
        self.log = place.folder / f"{self.name}.log"
        self.process = place.job("sharer.py", self.name, kind)
        names = place.folder / f"{self.name}.files"
        wait_for("it has used everything", lambda: self.log.exists() and names.exists())
        self.files = [Path(name) for name in names.read_text().split()]
        self.inner = SHM / f"gpuckpt-{self.name}-folder" / "inner"
        STARTED.append(self)

    def moves(self) -> bool:
        before = len(lines_of(self.log))
        return bool(wait_for("it goes on", lambda: len(lines_of(self.log)) > before + 2))

    def dump(self, image: str, *args: object) -> Path:
        path = self.place.folder / image
        answer = self.place.gpuckpt("dump", self.process.pid, "-o", path, *args)
        assert answer.result["image"] == str(path)
        if not args:
            wait_for("the pid is free", lambda: not exists(self.process.pid))
        self.check()
        return path

    def restore(self, image: Path) -> bool:
        assert self.place.restore(image) == self.process.pid
        self.check()
        return self.moves()

    def check(self) -> None:
        """Nothing is left beside its files, nor under them: no name of CRIU's, none of ours."""
        assert [path.stat().st_nlink for path in self.files] == [1] * len(self.files)
        assert not list(SHM.glob(".gpuckpt-*"))

    def kill(self, image: Path) -> None:
        """End the whole tree at once, so that nobody tidies up after it."""
        manifest = json.loads((image / "manifest.json").read_text())
        pids = [one["pid"] for one in manifest["tree"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for("all are gone", lambda: not any(map(exists, pids)))

    def forget(self) -> None:
        """Remove all that it has in /dev/shm, as a boot does."""
        for path in self.files:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.inner.parent, ignore_errors=True)


def test_jobs_with_semaphores_wherever_and_however_often(place: Field) -> None:
    first, second = Sharer(place), Sharer(place)
    going_on = first.dump("going-on", "--leave-running")
    assert first.moves()
    with ThreadPoolExecutor() as both:  # CRIU has the same names for them: each in its turn
        one, other = both.map(Sharer.dump, (first, second), ("one", "other"))
        # in the other order, with the files still there
        assert all(both.map(Sharer.restore, (second, first), (other, one)))
    first.kill(one)
    # its memory is not what it was, and nobody has it
    assert first.restore(one)
    first.kill(one)
    first.forget()
    assert first.restore(going_on)
    assert second.moves()
    shown = place.gpuckpt("show", going_on).result["manifest"]["carried"]
    needed = [one for one in shown if one["why"] == "needed"]
    assert {Path(path) for entry in needed for path in entry["names"]} == set(first.files)


def test_files_of_others_are_left_alone(place: Field) -> None:
    job = Sharer(place, "plain")
    failing = [sys.executable, "-c", FAILS, str(job.process.pid), "-o", str(place.folder / "none")]
    assert subprocess.run(failing, check=False, timeout=60).returncode == 6
    job.check()
    assert job.moves()
    image = job.dump("image")
    kept = {path: path.read_bytes() for path in job.files}
    semaphore = next(path for path in job.files if path.name.startswith("sem."))
    job.forget()
    semaphore.write_bytes(b"of somebody else")
    answer = place.gpuckpt("restore", image)
    assert (answer.code, answer.error) == (8, "host_mismatch")
    (found,) = answer.json["error"]["findings"]
    assert (found["id"], found["object"]) == ("file-taken", str(semaphore))
    assert f"rm {semaphore}" in found["remedy"]
    semaphore.unlink()
    # a failure takes back all that was made
    refused = ("--probe", "false", "--probe-timeout", "0.1", "--on-verify-fail", "kill")
    answer = place.gpuckpt("restore", image, "--settle", "0", *refused)
    assert answer.code == 11, answer
    assert not any(path.exists() for path in (*job.files, job.inner.parent))
    # a gpuckpt that was killed could not
    done = subprocess.run([sys.executable, "-c", DIES, image], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert {path: path.read_bytes() for path in job.files} == kept
    status = json.loads(place.gpuckpt("status").stdout)
    assert str(semaphore) in json.dumps(status)
    answer = place.gpuckpt("repair")
    assert answer.code == 0, answer
    assert not any(path.exists() for path in (*job.files, job.inner.parent))
    assert job.restore(image)
    assert job.inner.stat().st_mode & 0o777 == job.inner.parent.stat().st_mode & 0o777 == 0o750
    job.kill(image)
