"""The files of real jobs are put back as they were, and lie elsewhere if that is wished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.file_trees import tree
from tests.root.harness import Field, ended, lines_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

# a restore whose gpuckpt dies when all files are placed and CRIU is to be started
DIES = """
import os, sys
from gpuckpt.cli.main import main
from gpuckpt.tools.criu import Criu
Criu.restore = lambda *_: os.kill(os.getpid(), 9)
sys.argv[1:] = ["restore", *sys.argv[1:]]
main()
"""
FAILS = ("--probe", "false", "--probe-timeout", "0.1", "--on-verify-fail", "kill", "--settle", "0")


class Writer:
    """A job at work in a folder of its own, and its image."""

    def __init__(self, place: Field) -> None:
        self.place = place
        self.folder = place.folder / "was" / "work"
        self.given = place.folder / "was" / "given"
        for path in (self.folder, self.given):
            path.mkdir(parents=True)
        (self.folder / "state.bin").write_bytes(bytes(4096))
        (self.folder / "settings").write_text("settings")
        (self.given / "weights.bin").write_bytes(bytes(8192))
        (self.given / "input").write_text("an input")
        os.chown(self.folder / "settings", -1, 8)
        job = place.start([
            sys.executable,
            str(Path(__file__).parent / "jobs" / "writer.py"),
            str(self.folder),
            str(self.given),
        ])  # fmt: skip
        self.log = self.folder / "steps.log"
        wait_for("it writes", lambda: len(lines_of(self.log)) > 2)
        self.image = place.dump(job)
        self.size = self.log.stat().st_size

    def plan(self, *args: object) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return what a restore would do to the files, by name, and what stops it."""
        answer = self.place.gpuckpt("restore", self.image, "--plan", *args).json["result"]
        steps = {Path(one["path"]).name: one for one in answer["files"]}
        return steps, [one["id"] for one in answer["findings"] if one["severity"] == "blocker"]

    def restore(self, *args: object) -> dict[str, Any]:
        """Restore it, see it write in `log`, and end it; return the result."""
        result = self.place.gpuckpt("restore", self.image, "--settle", "0", *args).result
        self.place.restored += result["pids"]
        pid = result["inside"]["init"] if result["inside"] else result["root_pid"]
        before = self.log.stat().st_size
        wait_for("it goes on", lambda: self.log.stat().st_size > before + 20)
        os.kill(pid, signal.SIGKILL)
        wait_for("it has ended", lambda: ended(pid))
        return dict(result)

    def lines(self) -> list[int]:
        return [int(line.removeprefix("step ")) for line in lines_of(self.log)]


@pytest.fixture
def job(place: Field) -> Iterator[Writer]:
    return Writer(place)


def test_a_log_that_is_missing_or_has_grown(job: Writer) -> None:
    recorded = job.log.stat()
    recorded_lines = job.lines()
    job.log.unlink()
    (job.folder / "settings").unlink()
    steps, stops = job.plan()
    assert ({steps[name]["act"] for name in ("steps.log", "settings")}, stops) == ({"make"}, [])
    job.restore()
    assert job.lines() == list(range(1, len(job.lines()) + 1))
    made = (job.folder / "settings").stat()
    assert (made.st_gid, made.st_size) == (8, 8)
    # what was written since the image is later now
    grown = job.log.read_bytes()
    assert grown[: recorded.st_size].decode().splitlines()[-1] == f"step {recorded_lines[-1]}"
    before = tree(job.folder)
    steps, stops = job.plan()
    assert (steps["steps.log"]["act"], steps["state.bin"]["act"]) == ("truncate", "refuse")
    assert stops == ["file-changed"]
    assert job.place.gpuckpt("restore", job.image).error == "host_mismatch"
    # neither a failure nor a death leaves a trace
    assert job.place.gpuckpt("restore", job.image, "--files", "replace", *FAILS).code == 11
    after = tree(job.folder)
    assert after.keys() == before.keys()
    assert after["steps.log"][-1].startswith(before["steps.log"][-1])
    assert {name for name in after if after[name] != before[name]} <= {"steps.log"}
    before = after
    dies = [sys.executable, "-c", DIES, str(job.image), "--files", "replace"]
    assert subprocess.run(dies, check=False, timeout=60).returncode == -signal.SIGKILL
    assert job.log.stat().st_size == job.size
    told = json.dumps(json.loads(job.place.gpuckpt("status").stdout))
    assert "left-cut" in told
    assert "left-aside" in told
    assert job.place.gpuckpt("repair").code == 0
    assert tree(job.folder) == before
    # today's is kept, with the choice that is made
    aside = job.restore("--files", "replace")["aside"]
    kept = Path(aside[str(job.log)])
    assert job.log.read_bytes()[: job.size] + kept.read_bytes() == before["steps.log"][-1]
    assert Path(aside[str(job.folder / "state.bin")]).read_bytes() == before["state.bin"][-1]
    assert len(job.lines()) == len(set(job.lines()))


def test_todays_files_if_that_is_wished(job: Writer) -> None:
    """CRIU has to accept them: a file of another size it does not."""
    job.log.write_text("of today\n")
    with (job.folder / "settings").open("a") as settings:
        settings.write("more")
        settings.flush()
        steps, stops = job.plan("--files", "keep")
        assert {steps[name]["act"] for name in ("steps.log", "settings")} == {"leave"}
        assert stops == ["gate-file-size"]
        steps, stops = job.plan()
        assert (steps["settings"]["act"], set(stops)) == ("refuse", {"file-changed", "file-in-use"})
    os.truncate(job.folder / "settings", 8)
    result = job.restore("--files", "keep")
    assert "file-kept" in {one["id"] for one in result["findings"]}
    assert result["aside"] == {}
    assert lines_of(job.log)[0] == "of today"


def test_all_of_it_elsewhere(job: Writer) -> None:
    """Once with its own pids, once more in a namespace of its own, and with what was missing."""
    was, moved = job.place.folder / "was", job.place.folder / "is here now"
    was.rename(moved)
    job.log = moved / "work" / "steps.log"
    job.log.unlink()
    mapped = ("--map-path", f"{was}={moved}")
    answer = job.place.gpuckpt("restore", job.image, "--map-path", "/nowhere=/x")
    assert (answer.code, answer.error) == (2, "usage")
    assert {job.plan()[0][name]["act"] for name in ("was", "work")} == {"make-folder"}
    steps, stops = job.plan(*mapped)
    acts = {name: one["act"] for name, one in steps.items() if one["act"] != "leave"}
    assert (acts, stops) == ({"steps.log": "make"}, [])
    result = job.restore(*mapped)
    assert "paths-remembered" in {one["id"] for one in result["findings"]}
    assert job.lines() == list(range(1, len(job.lines()) + 1))
    again = job.restore(*mapped, "--pid-namespace", "--files", "replace")
    assert Path(again["aside"][str(job.log)]).exists()
    assert job.lines() == list(range(1, len(job.lines()) + 1))
    assert not was.exists()
