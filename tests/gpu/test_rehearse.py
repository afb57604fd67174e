"""Rehearsals on a real GPU, and a card that somebody else fills while a job's state is away."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import CudaState
from tests.gpu.job import wait
from tests.root.harness import Answer, Field, exists

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuckpt.tools.cuda import Cuda
    from tests.gpu.job import Job

    Start = Callable[..., Job]

TRAINING_STEPS = 400
LEAVE = "512"  # MiB that the neighbour leaves


@pytest.fixture
def operator(tmp_path: Path) -> Field:
    """Give somebody who runs gpuckpt."""
    return Field(tmp_path)


def told(answer: Answer) -> dict[str, object]:
    """Return the result of a rehearsal, printed so that a run's log holds its numbers."""
    result = answer.result
    receipt = result["receipt"]
    phases = ", ".join(f"{one['name']} {one['seconds']:.2f}" for one in receipt["phases"])
    print(f"\nrehearse: pause {result['pause']:.2f}: {phases}; {result['gpu_bytes'] >> 20} MiB")
    print(f"copies: {result['proved']}; {result['wrong']}")
    return dict(result)


@pytest.mark.parametrize(
    "how", [("--stay", "2"), ("--prove",), ("--dump", "-o", "scratch")], ids=" ".join
)
def test_training_is_bitwise_equal(start: Start, operator: Field, how: tuple[str, ...]) -> None:
    """Suspended in place once or twice, or dumped and gone on from memory: it never notices."""
    undisturbed = start("train.py", str(TRAINING_STEPS), first="end").lines()
    job = start("train.py", str(TRAINING_STEPS), first="step 0 " + undisturbed[0].split(" ", 2)[2])
    wait(lambda: len(job.lines()) > TRAINING_STEPS // 4, "a quarter of the steps")
    words = [str(operator.folder / word) if word == "scratch" else word for word in how]
    result = told(operator.gpuckpt("rehearse", job.pid, *words))
    assert len(job.lines()) < TRAINING_STEPS, "rehearsed too late to prove anything"
    assert (result["wrong"], result["moved_before"], result["moves_now"]) == ([], True, True)
    assert not (operator.folder / "scratch").exists()
    wait(lambda: "end" in job.lines(), "the training ends")
    assert job.lines() == undisturbed


def test_a_round_trip_proves_all_of_the_gpu_memory(start: Start, operator: Field) -> None:
    """The copies are found, as much as the job has on the GPU, and come twice alike."""
    job = start("ballast.py", "4")
    result = told(operator.gpuckpt("rehearse", job.pid, "--prove"))
    proved = result["proved"]
    assert isinstance(proved, dict)
    assert proved["bytes"] >= 4 << 30
    assert result["wrong"] == []
    job.counts_on()


def test_threads_that_poll_the_gpu_all_the_time(start: Start, operator: Field) -> None:
    """They are held while the state is away, however long that is."""
    job = start("poller.py")
    told(operator.gpuckpt("rehearse", job.pid, "--stay", "2"))
    job.counts_on()


def test_a_neighbour_on_the_gpu_stops_a_rehearsal(start: Start, operator: Field) -> None:
    """It could take the memory; the job is not touched, the neighbour is named."""
    job, other = start(), start()
    answer = operator.gpuckpt("rehearse", job.pid)
    assert (answer.code, answer.error) == (4, "blocked")
    found = [one for one in answer.json["error"]["findings"] if one["id"] == "gpu-shared"]
    assert [one["pid"] for one in found] == [other.pid]
    job.counts_on()
    told(operator.gpuckpt("rehearse", job.pid, "--ignore", "gpu-shared"))
    job.counts_on()


@pytest.mark.parametrize("way", ["return", "rollback"])
def test_a_card_that_was_filled_meanwhile(
    start: Start, operator: Field, cuda: Cuda, way: str
) -> None:
    """Nothing is lost: the holder is named, the job stays suspended, `repair` brings it back."""
    job = start("ballast.py", "4")
    neighbour = start("fill.py", LEAVE, first="ready")
    stay = "10" if way == "return" else "600"
    argv = operator.command("rehearse", job.pid, "--stay", stay, "--ignore", "gpu-shared", "--json")
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert any(line.startswith("gpuckpt: stay: begins") for line in child.stderr)
    os.kill(neighbour.pid, signal.SIGUSR1)
    neighbour.await_line("full")
    if way == "rollback":
        child.send_signal(signal.SIGINT)
    out, story = child.communicate(timeout=300)
    assert child.returncode == 10, (out, story)
    assert f"held by process {neighbour.pid}" in out, out
    assert f"gpuckpt repair {job.pid}" in out, out
    again = operator.gpuckpt("repair", job.pid)
    assert again.code == 10, "the card is still full"
    assert str(neighbour.pid) in again.stdout
    neighbour.end()
    assert operator.gpuckpt("repair", job.pid).code == 0
    assert cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}
    job.counts_on()


def test_a_card_that_is_full_before_a_restore(start: Start, operator: Field) -> None:
    """Refused before anything is started; with room the same image comes back."""
    job = start("ballast.py", "4")
    image = operator.folder / "image"
    operator.gpuckpt("dump", job.pid, "-o", image).result  # noqa: B018 - asserts success
    job.child.wait(60)
    wait(lambda: not exists(job.pid), f"pid {job.pid} is free")
    neighbour = start("fill.py", LEAVE, first="ready")
    os.kill(neighbour.pid, signal.SIGUSR1)
    neighbour.await_line("full")
    answer = operator.gpuckpt("restore", image)
    assert answer.code == 8
    assert f"process {neighbour.pid}" in answer.stdout
    neighbour.end()
    before = job.ticks()
    assert operator.gpuckpt("restore", image).code == 0
    wait(lambda: job.ticks() > before + 3, "it counts on")
    assert not [line for line in job.lines() if line.startswith("failed")]
    os.kill(job.pid, signal.SIGTERM)
    wait(lambda: not exists(job.pid), f"end of restored process {job.pid}")


def test_leave_running_meets_a_full_card(start: Start, operator: Field, cuda: Cuda) -> None:
    """The image is whole, the job waits for its memory, and `repair` brings it back."""
    job = start("ballast.py", "8")
    neighbour = start("fill.py", LEAVE, first="ready")
    image = operator.folder / "image"
    argv = operator.command("dump", job.pid, "-o", image, "--leave-running", "--json")
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert any(line.startswith("gpuckpt: gpu-out: done") for line in child.stderr)
    os.kill(neighbour.pid, signal.SIGUSR1)
    neighbour.await_line("full")
    out, story = child.communicate(timeout=300)
    assert child.returncode == 10, (out, story)
    assert f"held by process {neighbour.pid}" in out, out
    assert operator.gpuckpt("verify", image).code == 0
    neighbour.end()
    assert operator.gpuckpt("repair", job.pid).code == 0
    assert cuda.states([job.pid]) == {job.pid: CudaState.RUNNING}
    job.counts_on()
