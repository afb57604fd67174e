"""A job comes back in a pid namespace of its own: beside itself, with all that it then can do."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.root.harness import PATIENCE, Field, ended, exists, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root
NAME = f"gpuckpt-apart-{os.getpid()}"
# a restore whose gpuckpt dies when it reaches one of its steps
DIES = """
import os, sys
from gpuckpt.cli.main import main
from gpuckpt.flow import restore
setattr(restore._Restore, sys.argv[1], lambda *_: os.kill(os.getpid(), 9))
sys.argv[1:] = ["restore", *sys.argv[2:]]
main()
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Leave nothing in /dev/shm."""
    yield
    Path("/dev/shm", NAME).unlink(missing_ok=True)


def apart(place: Field, image: Path, *args: object) -> dict[str, Any]:
    """Restore an image into a namespace, and have it ended with the test."""
    found = place.gpuckpt("restore", image, "--pid-namespace", "--settle", "0.2", *args).result
    place.restored.append(found["inside"]["init"])
    return found


def count(pid: int) -> int:
    """Return the count of the job that a process is, as it sees /dev/shm."""
    raw = Path(f"/proc/{pid}/root/dev/shm/{NAME}").read_bytes()
    return int(struct.unpack_from("=Q", raw)[0])


def moves(*pids: int) -> bool:
    before = [count(pid) for pid in pids]
    now = wait_for("all count on", lambda: _moved(pids, before))
    return bool(now)


def _moved(pids: tuple[int, ...], before: list[int]) -> bool:
    return all(count(pid) > then for pid, then in zip(pids, before, strict=True))


def test_side_by_side_and_on(place: Field) -> None:
    """An original and two copies; one is dumped, comes back apart, and then where it first was."""
    job = place.job("apart.py", NAME)
    wait_for("it counts", lambda: (place.folder / "log").exists() and count(job.pid))
    image = place.folder / "image"
    assert place.gpuckpt("dump", job.pid, "-o", image, "--leave-running").code == 0
    refused = place.gpuckpt("plan", image).json["error"]["findings"]
    remedies = {one["id"]: one["remedy"] for one in refused if one["severity"] == "blocker"}
    assert {"job-runs", "gate-parent-death", "file-taken", "socket-taken"} <= set(remedies)
    assert "--pid-namespace" in remedies["job-runs"] + remedies["gate-parent-death"]
    planned = place.gpuckpt("restore", image, "--plan", "--pid-namespace").result
    assert planned["can_restore"]

    one, two = apart(place, image), apart(place, image)
    for copy in (one, two):
        assert copy["inside"]["root_pid"] == job.pid
        assert copy["inside"]["init"] != copy["root_pid"] != job.pid
        assert len(copy["pids"]) == len(copy["inside"]["pids"]) == 3
    assert moves(job.pid, one["root_pid"], two["root_pid"])
    for copy in (one, two):
        renamed = {drivers_name(job.pid, job.pid): drivers_name(copy["root_pid"], job.pid)}
        assert copy["inside"]["renamed"] == renamed
        assert answers(copy["root_pid"], job.pid)
    assert answers(job.pid, job.pid)
    os.kill(one["inside"]["init"], signal.SIGUSR1)
    wait_for("the signal is passed on", lambda: count(one["root_pid"]) > 1_000_000)
    assert max(count(job.pid), count(two["root_pid"])) < 1_000_000

    too_high = place.gpuckpt("plan", one["inside"]["init"]).json["error"]["findings"]
    assert f"process {one['root_pid']}." in too_high[0]["remedy"]
    second = place.folder / "second"
    assert place.gpuckpt("dump", one["root_pid"], "-o", second).result["image"] == str(second)
    wait_for("its namespace is gone", lambda: ended(one["inside"]["init"]))
    manifest = json.loads((second / "manifest.json").read_text())
    assert (manifest["root_pid"], manifest["tree"][0]["host_pid"]) == (job.pid, one["root_pid"])
    assert [f"/dev/shm/{NAME}"] in [one["names"] for one in manifest["carried"]]
    (name,) = (b64decode(one["name"]) for one in manifest["outside"]["names"])
    assert {name.rstrip(b"\0").decode().replace("\0", "@")} == set(
        one["inside"]["renamed"].values()
    )
    assert moves(job.pid, two["root_pid"])

    root = stays(place, second, "--pid-namespace")
    assert count(root) > 1_000_000
    assert answers(root, job.pid)
    init = int(Path(f"/proc/{root}/stat").read_text().rpartition(")")[2].split()[1])
    place.restored.append(init)
    place.children[-1].terminate()
    assert place.children[-1].wait(PATIENCE) == 7

    job.terminate()
    os.kill(two["inside"]["init"], signal.SIGTERM)
    assert job.wait(PATIENCE) == 7
    Path("/dev/shm", NAME).unlink()
    wait_for("its pids are free", lambda: not exists(job.pid) and ended(two["inside"]["init"]))
    assert stays(place, second) == job.pid
    assert moves(job.pid)
    place.children[-1].terminate()
    assert place.children[-1].wait(PATIENCE) == 7


def drivers_name(pid: int, inside: int) -> str:
    """Return the name of a CUDA driver's socket in the pid namespace that a process lives in."""
    return f"@cuda-uvmfd-{Path(f'/proc/{pid}/ns/pid').stat().st_ino}-{inside}"


def answers(pid: int, inside: int) -> bool:
    """Whether somebody listens where the driver of a process would."""
    return drivers_name(pid, inside).ljust(108, "@") in listening()


def listening() -> set[str]:
    """Return the names at which anybody listens."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {line[-1] for line in lines if line[3] == "00010000"}


def test_names_that_mean_something_are_refused(place: Field) -> None:
    """No second copy robs the first of its path, or fails for its name, while that is there."""
    job = place.job("apart.py", NAME, "open")
    wait_for("it counts", lambda: (place.folder / "log").exists() and count(job.pid))
    image, path = place.folder / "image", place.folder / "socket"
    assert place.gpuckpt("dump", job.pid, "-o", image, "--leave-running").code == 0
    there = path.stat().st_ino
    refused = place.gpuckpt("restore", image, "--pid-namespace").json["error"]["findings"]
    taken = {one["object"]: one["pid"] for one in refused if one["id"] == "socket-taken"}
    assert taken.keys() == {f"unix {path}", f"unix @{NAME}"}
    assert all(Path(f"/proc/{pid}/stat").exists() for pid in taken.values())
    assert path.stat().st_ino == there

    job.terminate()
    assert job.wait(PATIENCE) == 7
    wait_for("the names are free", lambda: not {f"@{NAME}", str(path)} & listening())
    found = apart(place, image)
    assert {f"@{NAME}", str(path)} <= listening()
    assert moves(found["root_pid"])


def stays(place: Field, image: Path, *args: object) -> int:
    """Restore with --wait, and return the root's pid once all is well."""
    output = place.folder / "output"
    output.write_text("")
    place.start(place.command("restore", image, "--wait", "--settle", "0.2", "-q", *args))
    told = wait_for("it is back", lambda: output.read_text().split())
    return int(told[0])


@pytest.mark.parametrize(("step", "stands"), [("_approve", False), ("_give_gpu", True)])
def test_gpuckpt_dies_in_the_middle(place: Field, step: str, *, stands: bool) -> None:
    """Before the job stands nothing is left, afterwards it runs; `repair` clears the rest."""
    job = place.job("apart.py", NAME)
    wait_for("it counts", lambda: (place.folder / "log").exists() and count(job.pid))
    image = place.folder / "image"
    assert place.gpuckpt("dump", job.pid, "-o", image, "--leave-running").code == 0
    state = {"GPUCKPT_STATE_DIR": str(place.folder / "state")}
    command = [sys.executable, "-c", DIES, step, str(image), "--pid-namespace"]
    died = subprocess.run(command, check=False, capture_output=True, env=os.environ | state)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (entry,) = (place.folder / "state" / "journal").glob("*.json")
    init = json.loads(entry.read_text())["space"]["pid"]
    place.restored.append(init)
    wait_for("it goes or stays", lambda: (state_of(init) == "S") if stands else ended(init))
    assert len(place.gpuckpt("status", **state).json["result"]["unfinished"]) == 1
    assert place.gpuckpt("repair", **state).code == 0
    assert not list((place.folder / "state" / "run").iterdir())
    assert place.gpuckpt("status", **state).result["unfinished"] == []
    assert ended(init) is not stands
    assert moves(job.pid)


def test_a_job_with_a_gpu(stage: Stage) -> None:
    """GPU steps go by the pids of this host; what was left half-made is ended, and all with it."""
    job = stage.start()
    image, state = stage.place.folder / "image", stage.place.folder / "state"
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0
    wait_for("the pid is free", lambda: not exists(job.pid))
    env = {"GPUCKPT_STATE_DIR": str(state)} | stage.driver.environ
    command = [sys.executable, "-c", DIES, "_give_gpu", str(image), "--pid-namespace"]
    died = subprocess.run(command, check=False, capture_output=True, env=os.environ | env)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (entry,) = (state / "journal").glob("*.json")
    init = json.loads(entry.read_text())["space"]["pid"]
    stage.place.restored.append(init)
    assert state_of(init) == "S"
    done = stage.place.gpuckpt("repair", **env).result["done"]
    assert [one["pid"] for one in done if one["text"] == "a half-restored task was ended"]
    assert ended(init)

    found = stage.gpuckpt("restore", image, "--pid-namespace", "--settle", "0.2").result
    stage.place.restored.append(found["inside"]["init"])
    assert stage.actions()[-2:] == ["restore", "unlock"]
    stage.counts_on()
    assert stage.gpuckpt("dump", found["root_pid"], "-o", image.with_name("second")).code == 0
    wait_for("the namespace is gone", lambda: ended(found["inside"]["init"]))
