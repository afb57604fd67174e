"""All memory of restored tasks is read back and compared, with every kind of memory there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.root.harness import Field, exists, lines_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.root
# a gpuckpt during whose restore single bytes of the stopped tasks change
SPOILS = """
import sys
from gpuckpt.cli.main import main
from gpuckpt.flow import restore
places, real = sys.argv[1].split(","), restore.prove
def prove(operation, image, read, pids):
    for place in map(int, places):
        with open(f"/proc/{pids[0]}/mem", "r+b", buffering=0) as memory:
            memory.seek(place)
            byte = memory.read(1)[0]
            memory.seek(place)
            memory.write(bytes([byte ^ 1]))
    return real(operation, image, read, pids)
restore.prove = prove
sys.argv[1:] = sys.argv[2:]
main()
"""


def works(place: Field) -> None:
    """See that the job finds all its memory as it left it."""
    seen = len(lines_of(place.folder / "log"))
    wait_for("the job has read it all", lambda: len(lines_of(place.folder / "log")) > seen + 1)


def spoiled(image: Path, *places: int) -> dict[str, Any]:
    """Restore with these bytes changed before the proof; return what was said."""
    names = ",".join(map(str, places))
    command = [sys.executable, "-c", SPOILS, names, "restore", str(image), "--prove", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == found["exit_code"], (done.stdout, done.stderr)
    return found


def proved(found: dict[str, Any], image: Path) -> None:
    """See that all pages of an image were compared, and that what differs is known."""
    files = json.loads((image / "manifest.json").read_text())["files"]
    pages = sum(one["raw_size"] for one in files if one["name"].startswith("pages-"))
    masked = found["proved"]["masked"]
    assert found["proved"]["bytes"] + sum(masked.values()) == pages
    assert found["proved"]["pages"] == pages // 4096
    assert masked.keys() <= {"rseq", "aio"}
    assert found["proved"]["findings"] == []
    assert [one for one in found["findings"] if one["id"].startswith("memory-")] == []
    phase = next(one for one in found["receipt"]["phases"] if one["name"] == "prove")
    assert phase["bytes"] == pages


def test_every_kind_of_memory_is_proved_and_one_byte_is_found(place: Field) -> None:
    job = place.job("memory.py")
    works(place)
    where = json.loads((place.folder / "places").read_text())
    image = place.dump(job)
    private, shared = where["private"], where["shared"]

    said = spoiled(image, private, shared)
    error = said["error"]
    assert (said["exit_code"], error["name"]) == (9, "restore_failed")
    of_all, of_one = error["findings"] if len(error["findings"]) == 2 else (None, None)
    assert of_one is not None, error["findings"]
    if "shared" not in of_all["reason"]:
        of_all, of_one = of_one, of_all
    assert of_one["object"] == f"pid {job.pid} {private & -4096:#x}-{(private & -4096) + 4096:#x}"
    assert (of_one["id"], of_one["pid"]) == ("memory-differs", job.pid)
    assert "rw-p anonymous" in of_one["reason"]
    assert f"{private:#x}" in of_one["reason"]
    assert "memfd:mapped" in of_all["reason"]
    assert "0x4009" in of_all["reason"]
    assert not exists(job.pid)
    assert place.gpuckpt("verify", image).code == 0

    found = spoiled(image, where["empty"])["result"]
    place.restored += found["pids"]
    assert found["proved"]["beyond"] >= 4096
    surplus = {one["id"]: one["object"] for one in found["findings"]}["memory-surplus"]
    assert surplus == f"pid {job.pid} {where['empty'] & -4096:#x}"
    works(place)
    for pid in found["pids"]:
        os.kill(pid, signal.SIGKILL)
    wait_for("the pids are free", lambda: not any(map(exists, found["pids"])))

    found = place.gpuckpt("restore", image, "--prove", "--settle", "0.2").result
    place.restored += found["pids"]
    proved(found, image)
    works(place)
    again = place.gpuckpt("restore", image, "--prove", "--pid-namespace", "--settle", "0.2").result
    place.restored.append(again["inside"]["init"])
    assert again["root_pid"] != job.pid
    proved(again, image)
    works(place)
    assert os.path.exists(f"/proc/{job.pid}")  # noqa: PTH110 - both of them
