"""A job that goes on before its image is written, with a disk that takes nothing until it may."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import JOBS, PATIENCE, lines_of, wait_for

if TYPE_CHECKING:
    from tests.root.harness import Field

pytestmark = pytest.mark.root

MEBIBYTES = 220  # more than is in work at any time


def begin(place: Field, pid: int, image: Path) -> subprocess.Popen[str]:
    """Dump, with a disk that is held, and return when the job was let go."""
    command = [sys.executable, str(JOBS / "held.py"), str(place.folder)]
    command += ["dump", str(pid), "-o", str(image), "--leave-running", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for("the job is let go", lambda: child.poll() is not None or _step() == "let-go")
        assert child.poll() is None, child.communicate()
    except BaseException:
        child.kill()
        child.communicate()
        raise
    return child


def _step() -> str:
    """Return the last step in the journal; one is written beside and renamed."""
    entries = Path(os.environ["GPUCKPT_STATE_DIR"], "journal").glob("*.json")
    return next((str(json.loads(one.read_text())["step"]) for one in entries), "")


def assert_at_large(place: Field, image: Path) -> None:
    """The job goes on, and nothing of its memory is on the disk."""
    log = place.folder / "log"
    before = len(lines_of(log))
    wait_for("it goes on", lambda: len(lines_of(log)) > before + 1)
    assert not image.exists()
    assert not any(path.stat().st_size for path in place.folder.glob(".*/criu/pages-*"))


def test_the_pause_ends_before_anything_is_written(place: Field) -> None:
    """Then a signal, a kill and a good end: only the image depends on them, the job never."""
    job, image, go = place.job("worker.py", MEBIBYTES), place.folder / "image", place.folder / "go"
    before = place.ask()

    child = begin(place, job.pid, image)
    assert_at_large(place, image)
    child.send_signal(signal.SIGTERM)
    told, story = child.communicate(timeout=PATIENCE)
    assert child.returncode == 128 + signal.SIGTERM, story
    assert "the job runs on; the image was not made" in json.loads(told)["error"]["message"]
    assert place.gpuckpt("status").code == 0
    assert not list(place.folder.glob(".*stage*"))

    child = begin(place, job.pid, image)
    child.kill()
    child.communicate()
    found = place.gpuckpt("status").json["error"]["findings"]
    assert {one["id"] for one in found} == {"left-stage"}
    done = place.gpuckpt("repair").result["done"]
    assert [one for one in done if one["pid"] is not None] == []
    assert not list(place.folder.glob(".*stage*"))

    child = begin(place, job.pid, image)
    assert place.gpuckpt("dump", job.pid, "-o", image).error == "process_unfit"
    assert_at_large(place, image)
    go.touch()
    told, story = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, story
    result = json.loads(told)["result"]
    names = [phase["name"] for phase in result["receipt"]["phases"]]
    assert names.index("end") < names.index("write")
    assert result["receipt"]["phases"][names.index("write")]["bytes"] > 0
    assert result["pause"] < result["seconds"]
    assert "wait in memory" in story
    assert place.gpuckpt("verify", image).code == 0
    job.kill()
    job.wait(PATIENCE)
    place.restore(image)
    assert place.ask()["sha256"] == before["sha256"]
