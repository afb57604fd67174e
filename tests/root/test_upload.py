"""Dumps that go to a real S3 server while they are made, and come back from it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.root import servers
from tests.root.harness import Answer, Field, exists, lines_of, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

URL = f"s3://{servers.BUCKET}/jobs/night-7"
BIG = """
import os, time
held = os.urandom(40 << 20) + bytes(20 << 20)
for number in range(10**9):
    print(number, flush=True)
    time.sleep(0.05)
"""
# the store's server dies when a first part has come, and the job stands frozen
DIES = """
import os, sys
from gpuckpt.cli.main import main
from gpuckpt.tools.remote_s3 import _Parts
real, server = _Parts.write, int(sys.argv[1])
def write(self, *args):
    if len(args[1]) >= self.part:
        os.kill(server, 9)
    real(self, *args)
_Parts.write = write
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.fixture
def bucket(place: Field) -> Iterator[subprocess.Popen[bytes]]:
    """Give an S3 server that every command of this test knows."""
    with servers.s3(place.folder / "moto.log") as (there, server):
        place.variables |= there
        yield server


def counting(place: Field) -> subprocess.Popen[bytes]:
    child = place.start([sys.executable, "-c", BIG])
    wait_for("the job counts", lambda: lines_of(place.folder / "output"))
    return child


def test_a_job_goes_to_a_store_and_comes_back(
    place: Field, bucket: subprocess.Popen[bytes]
) -> None:
    child, output = counting(place), place.folder / "output"
    stays = place.gpuckpt("dump", child.pid, "-o", f"{URL}-stays", "--leave-running").result
    assert stays["image"] == f"{URL}-stays"
    assert place.gpuckpt("verify", f"{URL}-stays").result["bytes"] == stays["totals"]["stored"]
    nowhere = place.gpuckpt("plan", child.pid, "-o", "s3://gpuckpt-nowhere/image")
    assert (nowhere.code, nowhere.error) == (3, "not_writable"), nowhere.stderr
    done = place.gpuckpt("dump", child.pid, "-o", URL, "--level", "none").result
    child.wait()
    assert done["totals"]["stored"] > 40 << 20  # in three parts
    assert [one["id"] for one in done["findings"]] == ["destination-network"]
    counted = len(lines_of(output))
    place.restored += place.gpuckpt("restore", URL).result["pids"]
    wait_for("it counts on", lambda: len(lines_of(output)) > counted)
    assert place.gpuckpt("status").result["unfinished"] == []
    assert bucket.poll() is None


def test_a_store_that_dies_in_the_middle_costs_only_the_image(
    place: Field, bucket: subprocess.Popen[bytes]
) -> None:
    child, output = counting(place), place.folder / "output"
    options = ("-o", URL, "--level", "none", "--json")
    told = subprocess.run(
        [sys.executable, "-c", DIES, str(bucket.pid), "dump", str(child.pid), *options],
        capture_output=True,
        text=True,
        timeout=place.patience,
        env=os.environ | place.variables,
        check=False,
    )
    answer = Answer(told.returncode, told.stdout, told.stderr)
    assert (answer.code, answer.error) == (6, "write_failed"), told.stderr
    assert f"{URL}/criu/pages-" in answer.json["error"]["message"]
    assert "`gpuckpt repair` removes it" in answer.json["error"]["message"]
    counted = len(lines_of(output))
    wait_for("it counts on", lambda: len(lines_of(output)) > counted)
    assert state_of(child.pid) not in "Tt"
    (left,) = place.gpuckpt("status").json["result"]["unfinished"]
    assert [one["id"] for one in left["left"]] == ["left-stage"]
    with servers.s3(place.folder / "moto-2.log") as (there, _):
        place.variables |= there
        assert place.gpuckpt("repair").result["left"] == []
    assert exists(child.pid)
