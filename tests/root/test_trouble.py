"""What must not go wrong when everything does: full disks, killed programs, damaged images."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import PATIENCE, exists, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.root.harness import Field

pytestmark = pytest.mark.root


def assert_runs_on(place: Field, pid: int, before: dict[str, object]) -> None:
    """The job moves, its memory is as it was, nothing is stopped, and the next dump works."""
    assert state_of(pid) not in {"T", "t", "Z"}
    after = place.ask()
    assert after["sha256"] == before["sha256"]
    wait_for("it counts on", lambda: place.ask()["counts"] > after["counts"])
    image = place.folder / "next"
    place.gpuckpt("dump", pid, "-o", image).result  # noqa: B018 - asserts success
    assert sorted(path.name for path in place.folder.glob("*next*")) == ["next"]
    assert not list(place.folder.glob(".*stage*")), "a stage was left"
    assert (image / "manifest.json").exists()


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a small tmpfs for the time of a test."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs"]
    subprocess.run(["mount", *options, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(place: Field) -> None:
    """The image does not fit: the job runs on, and nothing is left on the small disk."""
    job = place.job("worker.py", 96)
    before = place.ask()
    with small_disk(place.folder / "small", 4) as small:
        answer = place.gpuckpt("dump", job.pid, "-o", small / "image", "--level", "0")
        assert answer.error in {"write_failed", "no_space", "blocked"}
        assert not list(small.iterdir())
    assert_runs_on(place, job.pid, before)


def test_a_disk_that_fills_up_while_writing(place: Field) -> None:
    """Room was there when it was looked at; another writer takes it in the middle."""
    job = place.job("worker.py", 96)
    before = place.ask()
    with small_disk(place.folder / "small", 200) as small:
        (small / "other").write_bytes(bytes(150 << 20))
        answer = place.gpuckpt("dump", job.pid, "-o", small / "image", "--level", "0")
        assert answer.code in {3, 6}
        assert [path.name for path in small.iterdir()] == ["other"]
    assert_runs_on(place, job.pid, before)


@pytest.mark.parametrize("victim", ["criu", "gpuckpt"])
def test_killed_in_the_middle_of_a_dump(place: Field, victim: str) -> None:
    """SIGKILL to CRIU or to gpuckpt itself while the memory streams: the job runs on."""
    job = place.job("worker.py", 600)
    before = place.ask()
    image = place.folder / "image"
    dumping = subprocess.Popen(
        place.command("dump", job.pid, "-o", image, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    criu = wait_for("CRIU streams", lambda: _streaming(place, job.pid))
    os.kill(criu if victim == "criu" else dumping.pid, signal.SIGKILL)
    told = dumping.communicate(timeout=120)[0]
    if victim == "criu":
        assert dumping.returncode == 6
        assert json.loads(told)["error"]["name"] == "dump_failed"
    wait_for("the job is let go", lambda: state_of(job.pid) not in {"t", "T"})
    assert not image.exists()
    assert_runs_on(place, job.pid, before)


def _streaming(place: Field, pid: int) -> int:
    """Return CRIU's pid once the pages have begun to arrive in the stage."""
    pages = [path for path in place.folder.glob(".image.stage-*/criu/pages-*") if _size(path)]
    tracer = _tracer(pid)
    return tracer if pages and tracer else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tracer(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid"))


# it connects, fills some memory so that a dump takes a moment, and sends line after line
TALKER = """
import os, socket, sys, time
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
memory = os.urandom(1 << 20) * 400
while True:
    line.sendall(b"still here\\n")
    time.sleep(0.02)
"""


def _left(place: Field, *args: object) -> list[str]:
    """Return the ids of what `status` says is left."""
    found = place.gpuckpt("status", *args)
    assert found.error == "unfinished"
    return [one["id"] for one in found.json["error"]["findings"]]


@pytest.mark.parametrize("victim", ["nobody", "criu", "both"])
def test_connections_live_through_a_dump_that_fails(place: Field, victim: str) -> None:
    """CRIU cuts them for the time of a dump; a job that runs on with dead ones is not put back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        job = place.start([sys.executable, "-c", TALKER, port])
        peer = server.accept()[0]
    command = place.command("dump", job.pid, "-o", place.folder / "image", "--tcp", "established")
    with peer, subprocess.Popen(command, stderr=subprocess.DEVNULL) as dumping:
        criu = wait_for("CRIU streams", lambda: _streaming(place, job.pid))
        if victim == "nobody":
            dumping.send_signal(signal.SIGINT)
        if victim == "both":
            dumping.kill()
        if victim != "nobody":
            os.kill(criu, signal.SIGKILL)
        dumping.wait(120)
        wait_for("the job is let go", lambda: state_of(job.pid) not in {"t", "T"})
        if victim == "both":
            assert place.gpuckpt("dump", job.pid, "-o", place.folder / "b").error == "unfinished"
            assert "left-tcp" in _left(place, job.pid)
            assert place.gpuckpt("repair").result["left"] == []
            assert place.gpuckpt("status").code == 0
        peer.setblocking(False)
        with suppress(BlockingIOError):
            peer.recv(1 << 20)  # all that had come before
        peer.settimeout(PATIENCE)
        assert peer.recv(1), "the job's connection is dead"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_dump(place: Field, signum: signal.Signals) -> None:
    """Ctrl-C and SIGTERM undo the dump, and the exit status tells of the signal."""
    job = place.job("worker.py", 600)
    before = place.ask()
    dumping = subprocess.Popen(
        place.command("dump", job.pid, "-o", place.folder / "image"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for("CRIU streams", lambda: _streaming(place, job.pid))
    dumping.send_signal(signum)
    assert dumping.wait(120) == 128 + signum
    assert_runs_on(place, job.pid, before)


def flip(path: Path, at: int) -> None:
    """Change one bit."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_one_flipped_bit_in_the_pages_ends_the_restore(place: Field) -> None:
    """CRIU would restore it and say that all is well; the frame's digest says otherwise."""
    job = place.job("worker.py", 64)
    before = place.ask()
    image = place.dump(job)
    pages = image / "criu" / "pages-1.img.zst"
    flip(pages, pages.stat().st_size // 2)
    answer = place.gpuckpt("restore", image)
    assert (answer.code, answer.error) == (7, "image_damaged")
    assert "pages-1.img" in answer.json["error"]["message"]
    assert not exists(job.pid), "something of the job is left"
    flip(pages, pages.stat().st_size // 2)
    place.restore(image)
    assert place.ask()["sha256"] == before["sha256"]


def test_a_pages_file_cut_short_is_refused_before_criu_starts(place: Field) -> None:
    """CRIU spins for ever on it (seen in 4.2), so it must not even be started."""
    job = place.job("worker.py", 8)
    place.ask()
    image = place.dump(job)
    pages = image / "criu" / "pages-1.img.zst"
    with pages.open("r+b") as file:
        file.truncate(pages.stat().st_size - 100)
    answer = place.gpuckpt("restore", image)
    assert (answer.code, answer.error) == (7, "image_damaged")
    assert not exists(job.pid)


def test_a_job_that_still_runs_is_named(place: Field) -> None:
    """A restore beside the job that was dumped is refused, naming it and what it holds."""
    job = place.job("worker.py", 1)
    place.ask()
    image = place.folder / "image"
    place.gpuckpt("dump", job.pid, "-o", image, "--leave-running").result  # noqa: B018
    answer = place.gpuckpt("restore", image)
    assert (answer.code, answer.error) == (8, "host_mismatch")
    findings = {finding["id"]: finding for finding in answer.json["error"]["findings"]}
    assert "still runs here" in findings["job-runs"]["reason"]
    assert "the job itself" in findings["port-taken"]["reason"]
    assert place.ask()["pid"] == job.pid


def test_a_changed_file_is_named(place: Field) -> None:
    """A file the job has open for rewriting must be as it was."""
    job = place.start(["/bin/bash", "-c", f"exec 5<>{place.folder}/data; echo x >&5; sleep 1000"])
    wait_for("the file is there", lambda: _size(place.folder / "data"))
    image = place.dump(job)
    (place.folder / "data").write_text("longer than before")
    answer = place.gpuckpt("restore", image)
    assert (answer.code, answer.error) == (8, "host_mismatch")
    assert [finding["id"] for finding in answer.json["error"]["findings"]] == ["file-changed"]
    (place.folder / "data").write_text("x\n")
    place.restore(image)


def test_targets_that_are_never_touched(place: Field) -> None:
    """Bad pids get a clear refusal, each its own."""
    zombie = subprocess.Popen(["/bin/true"])
    wait_for("it is a zombie", lambda: state_of(zombie.pid) == "Z")
    kernel_threads = [  # none in a pid namespace of its own
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and _comm(path) == "kthreadd"
    ]
    expected = {
        1: "forbidden_process",
        os.getpid(): "forbidden_process",
        **dict.fromkeys(kernel_threads, "forbidden_process"),
        zombie.pid: "no_such_process",
        4_194_303: "no_such_process",
    }
    for pid, name in expected.items():
        answer = place.gpuckpt("dump", pid, "-o", place.folder / "image")
        assert (answer.code, answer.error) == (4, name), pid
    zombie.wait()
    assert not (place.folder / "image").exists()


def _comm(path: Path) -> str:
    try:
        return (path / "comm").read_text().strip()
    except OSError:
        return ""


def test_places_that_take_no_image(place: Field) -> None:
    """An image that exists, a missing folder, a read-only disk: refused with the job untouched."""
    job = place.job("worker.py", 1)
    before = place.ask()
    (place.folder / "there").mkdir()
    assert place.gpuckpt("dump", job.pid, "-o", place.folder / "there").error == "image_exists"
    missing = place.folder / "no" / "image"
    assert place.gpuckpt("dump", job.pid, "-o", missing).error == "not_writable"
    with small_disk(place.folder / "ro", 1) as small:
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        answer = place.gpuckpt("dump", job.pid, "-o", small / "image")
        assert answer.error == "not_writable"
    assert_runs_on(place, job.pid, before)


def test_a_state_directory_named_from_here(place: Field) -> None:
    """CRIU runs in another folder than we; a relative GPUCKPT_STATE_DIR means ours."""
    job = place.job("worker.py", 1)
    place.ask()
    image, state = place.folder / "image", place.folder / "state"
    named = os.path.relpath(state)
    answer = place.gpuckpt("dump", job.pid, "-o", image, GPUCKPT_STATE_DIR=named)
    assert answer.result["image"] == str(image)
    assert not list((state / "run").iterdir())


def test_a_signal_while_the_probe_hangs(place: Field) -> None:
    """The probe is ended at once and the restore undone; the image can be restored again."""
    job = place.job("worker.py", 1)
    place.ask()
    image = place.dump(job)
    begun = place.folder / "begun"
    probe = f"touch {begun}; sleep 600"
    command = place.command("restore", image, "--settle", "0", "--probe-timeout", 600)
    place.restored.append(job.pid)
    restoring = place.start([*command, "--probe", probe])
    wait_for("the probe runs", begun.exists)
    restoring.terminate()
    assert restoring.wait(60) == 128 + signal.SIGTERM
    assert not exists(job.pid)
    place.restore(image)
