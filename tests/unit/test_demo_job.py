"""The demo's job counts as computed, holds nothing but its log, and cannot hide a lost tick."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuckpt import demo_job
from gpuckpt.tools.run import Child, Command, Runner

PATIENCE = 20.0  # seconds; a loaded machine starts an interpreter slowly


def ticks(log: Path, least: int) -> tuple[tuple[int, int], ...]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if log.exists() and len(found := demo_job.read_log(log)[1]) >= least:
            return found
        time.sleep(0.02)
    pytest.fail(f"no {least} ticks within {PATIENCE:g} s")


def job(log: Path) -> Child:
    argv = (sys.executable, "-m", "gpuckpt.demo_job", "--log", str(log), "--device", "cpu")
    return Runner().start(Command(argv, env={"PYTHONPATH": os.pathsep.join(sys.path)}))


def test_the_value_is_what_the_words_add_up_to() -> None:
    counter, right = demo_job.CpuCounter(), demo_job.values("cpu")
    counted = [counter.tick() for _ in range(20)]
    assert counted == [(number, next(right)) for number in range(1, 21)]
    assert demo_job.expected(20, "cpu") == counted[-1][1]
    assert demo_job.expected(1, "gpu") != demo_job.expected(1, "cpu")


def test_one_wrong_word_shows(tmp_path: Path) -> None:
    counter = demo_job.CpuCounter()
    counter._words[100] ^= 1
    tick, value = counter.tick()
    log = tmp_path / "log"
    log.write_text(f"device cpu\ntick {tick} value {value:016x}\n")
    assert len(demo_job.faults(log)) == 1


def test_it_counts_holds_only_its_log_and_ends_politely(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with job(log) as child:
        ticks(log, 3)
        held = {str(entry.readlink()) for entry in Path(f"/proc/{child.pid}/fd").iterdir()}
        assert held == {os.devnull, str(log)}
        assert Path(f"/proc/{child.pid}/cwd").readlink() == Path("/")
        child.terminate()
        assert child.wait(PATIENCE) == 0
    assert demo_job.faults(log) == ()
    device, counted = demo_job.read_log(log)
    assert device == "cpu"
    assert [tick for tick, _ in counted] == list(range(1, len(counted) + 1))


def line(tick: int) -> str:
    return f"tick {tick} value {demo_job.expected(tick, 'cpu'):016x}\n"


@pytest.mark.parametrize(
    "lines",
    [
        [line(1), line(2), line(1)],  # it began anew
        [line(1), line(3)],  # a tick was lost
        [line(1), line(2), line(2)],  # it went on from an older state
        [line(1), "failed: the driver answers CUDA_ERROR_UNKNOWN\n"],
    ],
)
def test_a_lost_place_shows(tmp_path: Path, lines: list[str]) -> None:
    log = tmp_path / "log"
    log.write_text("".join(["device cpu\n", *lines]))
    assert demo_job.faults(log)


def test_a_line_still_being_written_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("device cpu\n" + line(1) + "tick 2 val")
    assert demo_job.read_log(log) == ("cpu", ((1, demo_job.expected(1, "cpu")),))
    assert demo_job.faults(log) == ()
    log.write_text("")
    assert demo_job.read_log(log) == ("", ())


@pytest.mark.programs
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_kernels_assemble(tmp_path: Path, target: str) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas on this machine; the GPU tests load the kernels")
    source = tmp_path / "kernels.ptx"
    source.write_text(demo_job.PTX)
    argv = (ptxas, f"--gpu-name={target}", str(source), "-o", str(tmp_path / "kernels.cubin"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
