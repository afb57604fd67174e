"""--thp and the real setting of this host, with a driver that is a stand-in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.flow.work.hugepages import FILE
from gpuckpt.model import CudaState
from tests.root.harness import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root

SETTING = Path(FILE)


def now() -> str:
    found = re.search(r"\[(\w+)\]", SETTING.read_text()) if SETTING.exists() else None
    return found[1] if found else ""


@pytest.fixture
def settable() -> Iterator[bool]:
    """Say whether this host lets us; whatever happens, the setting is as before afterwards."""
    first = now()
    try:
        SETTING.write_text("madvise")
    except OSError:  # a container, or a kernel without huge pages
        yield False
        return
    try:
        yield True
    finally:
        SETTING.write_text(first)


def begin(stage: Stage, *args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        stage.place.command(*args, "--thp"),
        env=os.environ | stage.driver.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_it_is_set_for_the_length_of_an_operation(stage: Stage, *, settable: bool) -> None:
    """Two at once, of which the first to end leaves it alone; then a kill, and a repair."""
    job, other = stage.start(), stage.start_ranks(1)[1][0]
    rehearsal = ("rehearse", job.pid, "--settle", "0")
    if not settable:
        before = now()
        done = stage.gpuckpt(*rehearsal, "--thp")
        assert done.code == 0
        assert "--thp" in done.stderr
        assert now() == before
        return
    stage.driver.fault(other, "checkpoint", hold=True)
    image = stage.place.folder / "image"
    dump = begin(stage, "dump", other, "-o", image, "--leave-running")
    wait_for("the driver copies", lambda: "checkpoint" in stage.actions())
    assert now() == "always"
    assert stage.gpuckpt(*rehearsal, "--thp").code == 0
    assert now() == "always", "the other one still relies on it"
    stage.driver.heal(other, "checkpoint")
    dump.wait()
    assert (dump.returncode, now()) == (0, "madvise")
    stage.driver.fault(job.pid, "checkpoint", hold=True)
    asked = len(stage.actions())
    killed = begin(stage, *rehearsal)
    wait_for("the driver copies", lambda: "checkpoint" in stage.actions()[asked:])
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    stage.driver.heal(job.pid, "checkpoint")
    wait_for("the job runs", lambda: stage.driver.state(job.pid) == CudaState.RUNNING)
    assert now() == "always"
    left = stage.gpuckpt("status").json["error"]["findings"]
    assert [one["object"] for one in left if one["id"] == "left-huge-pages"] == [FILE]
    assert stage.gpuckpt("repair").code == 0
    assert now() == "madvise"
    stage.counts_on()
