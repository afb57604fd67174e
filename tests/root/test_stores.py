"""Images on their way to real stores and back, and restored from there: S3, and a host by sftp."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt import demo_job
from tests.root import servers
from tests.root.harness import PATIENCE, Answer, Field, exists, lines_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

# the store's server dies when CRIU is about to ask for the memory, which was not read before
DIES = """
import os, sys
from gpuckpt.cli.main import main
from gpuckpt.image import distant
from gpuckpt.tools.criu import Criu
distant._SMALL_IN_ALL = 0
real, server = Criu.restore, int(sys.argv[1])
def restore(*args):
    os.kill(server, 9)
    real(*args)
Criu.restore = restore
sys.argv[1:] = ["restore", *sys.argv[2:]]
main()
"""
BIG = """
import os, sys, time
held = os.urandom(24 << 20)
for number in range(10**9):
    print(number, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def bucket(tmp_path: Path, place: Field) -> Iterator[subprocess.Popen[bytes]]:
    """Give an S3 server that every command of this test knows."""
    with servers.s3(tmp_path / "moto.log") as (there, server):
        place.variables |= there
        yield server


def test_an_image_travels_and_its_job_goes_on_from_a_store(
    place: Field, tmp_path: Path, bucket: subprocess.Popen[bytes]
) -> None:
    log = place.folder / "count.log"
    child = place.start(
        [sys.executable, "-m", "gpuckpt.demo_job", "--log", str(log), "--device", "cpu"]
    )
    wait_for("the job counts", lambda: log.exists() and demo_job.read_log(log)[1])
    image = place.dump(child)
    told: list[Answer] = []

    def run(*args: object) -> Answer:
        told.append(place.gpuckpt(*args))
        return told[-1]

    url = f"s3://{servers.BUCKET}/jobs/image"
    sent = run("copy", image, f"s3://{servers.BUCKET}/jobs/", "-v").result
    assert (sent["copy"], sent["sent"]) == (url, sent["bytes"])
    image.rename(tmp_path / "away")
    before = len(demo_job.read_log(log)[1])
    back = run("restore", url, "--settle", "0.2").result
    place.restored += back["pids"]
    wait_for("it counts on", lambda: len(demo_job.read_log(log)[1]) > before)
    place.close()
    with servers.sftp(tmp_path / "home") as (mine, host):
        place.variables |= mine
        there = f"{host}{tmp_path}/images/night-7"
        assert run("copy", url, there).result["sent"] == sent["sent"]
        assert run("plan", there).result["target"] == "image"
        (tmp_path / "home/.ssh/known_hosts").write_text("")
        assert run("verify", there).error == "store_failed"
    assert bucket.poll() is None
    told_all = "".join(one.stdout + one.stderr for one in told)
    kept = [path for path in Path(os.environ["GPUCKPT_STATE_DIR"]).rglob("*") if path.is_file()]
    told_all += "".join(path.read_text(errors="replace") for path in kept)
    assert kept
    assert not [secret for secret in ("hunter2", "AKIAGPUCKPT") if secret in told_all]


def test_a_store_that_goes_away_ends_a_restore_with_nothing_left(
    place: Field, bucket: subprocess.Popen[bytes]
) -> None:
    child = place.start([sys.executable, "-c", BIG])
    output = place.folder / "output"
    wait_for("the job counts", lambda: lines_of(output))
    image = place.dump(child, "--level", "none")
    url = f"s3://{servers.BUCKET}/image"
    place.gpuckpt("copy", image, url).result  # noqa: B018 - it must have succeeded
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(bucket.pid), url, "--json"],
        capture_output=True,
        text=True,
        timeout=place.patience,
        env=os.environ | place.variables,
        check=False,
    )
    answer = Answer(done.returncode, done.stdout, done.stderr)
    assert (answer.code, answer.error) == (7, "store_failed"), done.stderr
    assert f"{url}/criu/pages-" in answer.json["error"]["message"]
    assert not exists(child.pid)
    assert place.gpuckpt("status").result["unfinished"] == []
    # nothing was harmed by it: the same image comes back from elsewhere
    place.restore(image)
    os.kill(child.pid, signal.SIGKILL)
    wait_for("it is gone", lambda: not exists(child.pid), PATIENCE)
