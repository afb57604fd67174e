"""S: a success that is none is not called one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.field.counting import Counter
from tests.root.harness import exists, lines_of, state_of, wait_for

if TYPE_CHECKING:
    from tests.root.harness import Answer, Field

pytestmark = pytest.mark.root

TALKER = """
import time
while True:
    print("still here", flush=True)
    time.sleep(0.05)
"""
# what a kernel does: adopted by pid 1, it leaves without a word
KERNEL = """
import os, time
while os.getppid() != 1:
    time.sleep(0.05)
"""


def ids(answer: Answer) -> list[str]:
    """Return the ids of what stands against something."""
    return [one["id"] for one in answer.json["error"]["findings"] if one["severity"] == "blocker"]


def test_output_into_a_pipe_that_nobody_reads_any_more(place: Field) -> None:
    """S03, S08: refused beforehand; done all the same, the restored job's death is told."""
    command = [sys.executable, "-S", "-c", TALKER]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as job:
        place.children.append(job)
        assert job.stdout is not None
        job.stdout.readline()
        image = place.folder / "image"
        answer = place.gpuckpt("dump", job.pid, "-o", image)
        assert (answer.code, ids(answer)) == (4, ["pipe-outside"])
        (found,) = answer.json["error"]["findings"]
        assert "stdout" in found["object"]
        assert f"process {os.getpid()} " in found["reason"]
        done = place.gpuckpt("dump", job.pid, "-o", image, "--ignore", "pipe-outside").result
        assert "pipe-outside" in [one["id"] for one in done["findings"]]
        job.communicate()  # whoever reads it sees the end
    wait_for("the pid is free", lambda: not exists(job.pid))
    place.restored.append(job.pid)
    answer = place.gpuckpt("restore", image, "--settle", "5")
    assert (answer.code, answer.error) == (11, "verification_failed"), answer.json
    assert not exists(job.pid) or state_of(job.pid) == "Z"


def test_a_kernel_without_its_server(place: Field) -> None:
    """S07: refused, because adopted by init it would end at once, as it then does."""
    script = place.folder / "ipykernel_launcher.py"
    script.write_text(KERNEL)
    job = place.start([sys.executable, "-S", str(script), "-f", "kernel-1.json"])
    wait_for("it runs", lambda: str(script) in Path(f"/proc/{job.pid}/cmdline").read_text())
    image = place.folder / "image"
    answer = place.gpuckpt("dump", job.pid, "-o", image)
    assert (answer.code, ids(answer)) == (4, ["jupyter-kernel"])
    done = place.gpuckpt("dump", job.pid, "-o", image, "--ignore", "jupyter-kernel")
    assert done.code == 0, done.json
    wait_for("the pid is free", lambda: not exists(job.pid))
    place.restored.append(job.pid)
    # while gpuckpt looks the job is its child; it ends when it becomes init's
    assert place.gpuckpt("restore", image, "--settle", "0").code in {0, 11}
    wait_for("it left", lambda: not exists(job.pid))


def test_output_that_will_be_written_twice(place: Field) -> None:
    """S14, S09: a copy goes on beside its image, which is told, and nobody gets a second one."""
    job = Counter(place)
    done = place.gpuckpt("dump", job.pid, "-o", job.image, "--leave-running").result
    assert done["running"] is True
    assert "outputs-repeated" in [one["id"] for one in done["findings"]]
    answer = place.gpuckpt("restore", job.image)
    assert (answer.code, answer.error) == (8, "host_mismatch")
    assert "job-runs" in ids(answer)
    last = int(lines_of(job.log)[-1])
    job.end()
    place.restored.append(job.pid)
    assert place.gpuckpt("restore", job.image, "--settle", "0").code == 0
    wait_for("it writes again", lambda: len(lines_of(job.log)) > last + 5)
    lines = lines_of(job.log)
    assert len(set(lines)) == len(lines), "what the job wrote meanwhile was taken from the log"
    (kept,) = job.log.parent.glob(f"{job.log.name}.after-*")
    assert int(lines_of(kept)[-1]) >= last
