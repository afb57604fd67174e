"""The commands of an operator, as typed, with real CRIU and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt import demo_job
from tests.root.harness import PATIENCE, exists, wait_for

if TYPE_CHECKING:
    from tests.root.harness import Field

pytestmark = pytest.mark.root

BIN = Path(__file__).parents[2] / "bin"


def counting(place: Field, log: Path) -> subprocess.Popen[bytes]:
    """Start a job that counts on the CPU and wait for its first number."""
    program = [sys.executable, "-m", "gpuckpt.demo_job", "--log", str(log), "--device", "cpu"]
    child = place.start(program)
    wait_for("the job counts", lambda: log.exists() and demo_job.read_log(log)[1])
    return child


def run(place: Field, *argv: object) -> subprocess.CompletedProcess[str]:
    """Run a program in the test's folder; `gpuckpt` is this checkout."""
    program = place.folder / "gpuckpt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuckpt "$@"\n')
    program.chmod(0o755)
    return subprocess.run(
        [str(word) for word in argv],
        cwd=place.folder,
        env={**os.environ, "GPUCKPT": str(program)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def trials() -> set[Path]:
    return set(Path(os.environ.get("TMPDIR", "/tmp")).glob("gpuckpt-trial-*"))


def test_the_demo_proves_itself_and_leaves_nothing(place: Field) -> None:
    before = trials()
    done = place.gpuckpt("demo").result
    assert done["device"] in {"cpu", "gpu"}
    assert done["ticks"] >= done["last"] + 5
    assert not exists(done["pid"])
    assert trials() == before


def test_an_interrupted_demo_leaves_nothing(place: Field) -> None:
    before = trials()
    with subprocess.Popen(
        place.command("demo", "--progress=json"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        started = next(line for line in demo.stderr if '"name": "start"' in line)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 128 + signal.SIGINT
    pid = int(started.partition("pid ")[2].partition('"')[0])
    wait_for("the job is gone", lambda: not exists(pid))
    assert trials() == before


def test_the_doctor_tries_it_out(place: Field) -> None:
    checks = {check["id"]: check for check in place.gpuckpt("doctor").result["checks"]}
    assert checks["criu"]["status"] == checks["criu-check"]["status"] == "ok"
    assert checks["try-cpu"]["status"] == "ok"


def test_the_doctor_tells_all_that_is_missing(place: Field) -> None:
    ran = place.gpuckpt("doctor", GPUCKPT_CRIU="/nowhere/criu")
    assert ran.code == 3
    checks = {check["id"]: check for check in ran.json["result"]["checks"]}
    assert checks["criu"]["status"] == "failed"
    assert "install-criu" in checks["criu"]["remedy"]
    assert checks["try-cpu"]["status"] == "failed"
    assert {"privileges", "kernel", "driver", "space", "state"} <= set(checks)
    assert ran.error == "host_unfit"


def test_quiet_commands_fit_together(place: Field) -> None:
    log = place.folder / "log"
    job = counting(place, log)
    dumped = run(place, *place.command("dump", job.pid, "-q"))
    image = Path(dumped.stdout.rstrip("\n"))
    assert dumped.returncode == 0
    assert dumped.stderr == ""
    assert image.parent == place.folder
    job.wait(PATIENCE)
    assert run(place, *place.command("verify", image)).returncode == 0
    shown = run(place, *place.command("show", image)).stdout
    assert f"needs pids: {job.pid}" in shown.splitlines()
    with subprocess.Popen(
        place.command("restore", image, "-q", "--wait"), stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == f"{job.pid}\n"
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(PATIENCE) == 0
    assert demo_job.faults(log) == ()
    assert not exists(job.pid)


def test_a_node_is_drained_and_comes_back(place: Field) -> None:
    logs = [place.folder / "one", place.folder / "two"]
    first, second = (counting(place, log) for log in logs)
    folder = place.folder / "ckpt"
    gone = 4_194_304  # never given: the kernel counts up to one less
    drained = run(place, BIN / "gpuckpt-drain", folder, first.pid, gone, second.pid)
    assert drained.returncode == 1
    lines = drained.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["dumped", str(first.pid)],
        ["failed", str(gone)],
        ["dumped", str(second.pid)],
    ]
    assert lines[3] == "summary: 2 dumped, 1 failed, 0 skipped"
    assert "no process" in drained.stderr
    counted = []
    for job, log in zip((first, second), logs, strict=True):
        job.wait(PATIENCE)
        counted.append(demo_job.read_log(log)[1][-1][0])
    back = run(place, BIN / "gpuckpt-return", folder)
    place.restored += [first.pid, second.pid]
    assert back.returncode == 0, back.stderr
    assert [line.split()[:2] for line in back.stdout.splitlines()[:2]] == [
        ["restored", str(first.pid)],
        ["restored", str(second.pid)],
    ]
    for log, before in zip(logs, counted, strict=True):
        wait_for("it counts on", lambda log=log, n=before: demo_job.read_log(log)[1][-1][0] > n)
        assert demo_job.faults(log) == ()
    again = run(place, BIN / "gpuckpt-return", folder)
    assert (again.returncode, again.stdout) == (0, "summary: 0 restored, 0 failed, 0 skipped\n")
