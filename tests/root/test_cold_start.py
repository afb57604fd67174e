"""A job that cannot be restored comes back from an older image, or is started as it had been."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.image_samples import seal
from tests.root.harness import PATIENCE, ended, exists, lines_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.root.fake_gpu import Stage
    from tests.root.harness import Answer, Field

pytestmark = pytest.mark.root

NOBODY = 65534
# says how it was started, and waits
JOB = """
echo "$(id -u) $(id -G) $(umask) $(pwd) [$EXTRA]" >>starts
echo begun
while :; do sleep 1; done
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Give a folder that another user can reach: pytest's are root's alone."""
    with tempfile.TemporaryDirectory(prefix="gpuckpt-test-") as folder:
        home = Path(folder)
        (home / "job.sh").write_text(JOB)
        yield home


def spoil(image: Path) -> None:
    """Change a byte of what the tasks' memory is made from."""
    stored = next((image / "criu").glob("pages-*"))
    raw = bytearray(stored.read_bytes())
    raw[len(raw) // 2] ^= 1
    stored.write_bytes(raw)


def close_gate(image: Path) -> None:
    """Let the image need a CPU that nobody has."""
    change(image, lambda plain: plain["host"]["cpu_flags"].append("teleport"))


def of_somebody_else(image: Path) -> None:
    """Let it be the image of nobody's job: this root may not be able to dump one."""
    change(image, lambda plain: plain["tree"][0].update(uid=NOBODY, gid=NOBODY))


def change(image: Path, how: Callable[[Any], None]) -> None:
    plain = json.loads((image / "manifest.json").read_text())
    how(plain)
    (image / "manifest.json").write_bytes(seal(plain))


def end(place: Field, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for("the job is gone", lambda: ended(pid))
    place.restored.append(pid)


def start(place: Field, home: Path) -> subprocess.Popen[bytes]:
    """Start the job with groups and a umask that are not ours."""
    with (home / "out.log").open("ab") as output:
        child = subprocess.Popen(
            ["setpriv", "--groups=44,45", "/bin/sh", "job.sh"],
            cwd=home,
            umask=0o027,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    place.children.append(child)
    threading.Thread(target=child.wait, daemon=True).start()  # a dump must find the pid free
    wait_for("the job runs", lambda: lines_of(home / "out.log"))
    return child


def tried(answer: Answer) -> list[tuple[str, str]]:
    """Return what was tried and what came of it."""
    told = answer.json.get("result") or answer.json["error"]
    return [(Path(one["image"]).name, one["outcome"]) for one in told["attempts"]]


def test_older_images_and_then_a_cold_start(place: Field, home: Path) -> None:
    job = start(place, home)
    images = place.folder / "images"
    images.mkdir()
    old, new = images / "old", images / "new"
    assert place.gpuckpt("dump", job.pid, "--leave-running", "-o", old).code == 0
    assert place.gpuckpt("dump", job.pid, "-o", new).code == 0
    wait_for("the pid is free", lambda: not exists(job.pid))
    (started,) = lines_of(home / "starts")
    anyway = ("restore", "--try", images, "--else-start", "--settle", "0.2")

    spoil(new)
    back = place.gpuckpt(*anyway)
    place.restored += back.result["pids"]
    assert (back.result["root_pid"], back.result["cold"]) == (job.pid, False)
    assert tried(back) == [("new", "image_damaged"), ("old", "restored")]

    # it runs, be it from the other image
    refused = place.gpuckpt("restore", new, "--else-start")
    assert (refused.code, tried(refused)[-1]) == (8, ("", "cold_start_failed"))
    assert refused.json["error"]["attempts"][-1]["findings"][0]["id"] == "second-copy"
    assert place.gpuckpt(*anyway).code == 8
    assert lines_of(home / "starts") == [started]
    end(place, job.pid)

    close_gate(new)
    spoil(old)
    for image in (old, new):
        of_somebody_else(image)
    for path in (home, *home.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    (place.folder / "env").write_text("export EXTRA='a b'\n")
    cold = place.gpuckpt(*anyway, "--env-file", place.folder / "env").result
    place.restored += cold["pids"]
    assert cold["cold"] is True
    outcomes = [one["outcome"] for one in cold["attempts"]]
    assert (outcomes[0], outcomes[2:]) == ("host_mismatch", ["started"])
    assert "gate-cpu" in {one["id"] for one in cold["why"]["findings"]}
    assert cold["lost"]["since_image"] > 0
    assert cold["lost"]["before_image"] > 0
    assert cold["started"]["stdout"] == str(home / "out.log")
    wait_for("it has begun", lambda: len(lines_of(home / "starts")) > 1)
    assert lines_of(home / "starts") == [
        f"0 0 44 45 0027 {home} []",
        f"{NOBODY} {NOBODY} 44 45 0027 {home} [a b]",
    ]
    pid = cold["root_pid"]
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/fd/1").readlink() == home / "out.log"
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"/bin/sh\0job.sh\0"

    again = place.gpuckpt(*anyway)
    assert again.code == 8
    assert "job-runs" in {one["id"] for one in again.json["error"]["findings"]}
    assert len(lines_of(home / "starts")) == 2
    shown = place.gpuckpt("show", cold["kept"], "--timeline").result["receipts"]
    assert [one["outcome"] for one in shown[0]["attempts"]] == outcomes[:2]


def test_what_criu_cannot_restore_is_started_and_waited_for(place: Field, home: Path) -> None:
    job = start(place, home)
    image = place.dump(job)
    broken = place.folder / "criu"
    criu = os.environ["GPUCKPT_CRIU"]
    broken.write_text(
        f'#!/bin/sh\ncase " $* " in *" restore "*) exit 1 ;; esac\nexec {criu} "$@"\n'
    )
    broken.chmod(0o755)
    env = {"GPUCKPT_CRIU": str(broken)}
    done = place.gpuckpt("restore", image, "--wait", "--else=sh -c 'echo $0; exit 5'", **env)
    assert done.code == 5
    first, _, rest = done.stdout.partition("\n")  # the job has our stdout
    assert first == "sh"
    result = json.loads(rest)["result"]
    assert (result["cold"], result["job_exit"]) == (True, 5)
    assert result["why"]["name"] == "restore_failed"

    line = "trap 'echo heard; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(
        place.command("restore", image, "--wait", "--else", "sh", "-c", line),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | env,
    ) as waiting:
        assert waiting.stdout is not None
        told = {"begins": False, "is told of": False}
        for one in waiting.stdout:  # in whatever order
            told["begins"] |= one == "ready\n"
            told["is told of"] |= one.startswith("receipt: ")
            if all(told.values()):
                break
        waiting.send_signal(signal.SIGTERM)
        text, _ = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 9
    assert "heard\n" in text


def test_the_driver_is_asked_anew_for_an_older_image(stage: Stage) -> None:
    """A restore that fails in the driver's hands leaves nothing that the next one would meet."""
    job = stage.start()
    images = [stage.place.folder / name for name in ("a", "b")]
    assert stage.gpuckpt("dump", job.pid, "-o", images[0]).code == 0
    shutil.copytree(images[0], images[1])
    job.wait(PATIENCE)
    wait_for("the pid is free", lambda: not exists(job.pid))
    change(images[1], lambda plain: plain.update(created="2026-01-01T00:00:00Z"))
    stage.driver.fault(job.pid, "restore", error="out of memory")
    failed = stage.gpuckpt("restore", "--try", *images, "--settle", "0.2")
    assert failed.code == 9
    assert tried(failed) == [("a", "restore_failed"), ("b", "restore_failed")]
    assert not exists(job.pid)
    asked = stage.actions()
    assert asked.count("restore") == 2
