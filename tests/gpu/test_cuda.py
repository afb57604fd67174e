"""The driver itself: there and back without CRIU, refusals, and the dead man's switch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cuda.bindings import driver

from gpuckpt import demo_job
from gpuckpt.errors import CudaCallFailed
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda import Cuda
from gpuckpt.tools.cuda_binary import ERROR_NAMES
from gpuckpt.tools.nvidia import Nvidia
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.run import Runner
from tests.gpu.job import PATIENCE, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.gpu.job import Job

    Start = Callable[..., Job]

RUNNING, LOCKED, CHECKPOINTED = CudaState.RUNNING, CudaState.LOCKED, CudaState.CHECKPOINTED
PROGRAM = shutil.which("cuda-checkpoint")


@pytest.fixture(
    params=[None, *filter(None, [PROGRAM])], ids=lambda p: "binary" if p else "bindings"
)
def either(request: pytest.FixtureRequest) -> Iterator[Cuda]:
    """Both ways to the driver; the program only where it is installed."""
    tool = Cuda(Runner(), program=request.param)
    yield tool
    tool.close()


def same_gpus() -> dict[str, str]:
    facts = Nvidia().facts()
    assert facts is not None
    return {gpu.uuid: gpu.uuid for gpu in facts.gpus}


def test_the_bindings_are_the_first_choice(cuda: Cuda) -> None:
    backend = cuda.describe()
    assert backend.kind == "bindings"
    assert backend.cuda
    assert not backend.note


def test_a_job_goes_there_and_back_and_counts_on(start: Start, either: Cuda) -> None:
    job = start()
    pid = job.pid
    plain = os.getppid()
    assert either.states([pid, plain]) == {pid: RUNNING, plain: CudaState.NONE}
    assert Proc().devices([pid])
    either.open({pid: RUNNING})
    for gpu_map in ({}, same_gpus()):
        assert either.lock([pid], 10) == {pid: LOCKED}
        assert either.checkpoint([pid]) == {pid: CHECKPOINTED}
        assert Proc().devices([pid]) == ()
        assert Nvidia().uses([pid]) == ()
        before = job.ticks()
        assert either.restore([pid], gpu_map) == {pid: LOCKED}
        assert job.ticks() == before
        assert either.unlock([pid]) == {pid: RUNNING}
        job.counts_on()
    assert demo_job.faults(job.log) == ()


def test_several_jobs_go_side_by_side(start: Start, cuda: Cuda) -> None:
    jobs = [start(), start(), start()]
    pids = [job.pid for job in jobs]
    cuda.open(dict.fromkeys(pids, RUNNING))
    cuda.lock(pids, 10)
    assert cuda.checkpoint(pids) == dict.fromkeys(pids, CHECKPOINTED)
    cuda.restore(pids, {})
    assert cuda.unlock(pids) == dict.fromkeys(pids, RUNNING)
    for job in jobs:
        job.counts_on()
        assert demo_job.faults(job.log) == ()


def test_a_refused_map_changes_nothing(start: Start, cuda: Cuda) -> None:
    job = start()
    pid = job.pid
    cuda.open({pid: RUNNING})
    cuda.lock([pid], 10)
    cuda.checkpoint([pid])
    nowhere = dict.fromkeys(same_gpus(), "GPU-00000000-0000-0000-0000-000000000001")
    with pytest.raises(CudaCallFailed) as caught:
        cuda.restore([pid], nowhere)
    (outcome,) = caught.value.failed
    assert outcome.after is CHECKPOINTED, outcome.text
    cuda.restore([pid], {})
    cuda.unlock([pid])
    job.counts_on()
    assert demo_job.faults(job.log) == ()


def test_a_lock_gives_up_on_a_long_kernel_and_the_job_runs_on(start: Start, cuda: Cuda) -> None:
    job = start("spin.py", "20", first="spinning")
    cuda.open({job.pid: RUNNING})
    with pytest.raises(CudaCallFailed) as caught:
        cuda.lock([job.pid], 2)
    assert "done" not in job.lines()  # or it did not prove anything
    assert caught.value.timed_out
    (outcome,) = caught.value.failed
    assert outcome.after is RUNNING
    job.await_line("done")
    job.counts_on()
    assert cuda.lock([job.pid], 10) == {job.pid: LOCKED}
    assert cuda.unlock([job.pid]) == {job.pid: RUNNING}
    job.counts_on()


def test_managed_memory_is_refused_and_the_job_runs_on(start: Start, cuda: Cuda) -> None:
    job = start("managed.py")
    cuda.open({job.pid: RUNNING})
    cuda.lock([job.pid], 10)
    with pytest.raises(CudaCallFailed) as caught:
        cuda.checkpoint([job.pid])
    (outcome,) = caught.value.failed
    assert (outcome.error, outcome.after) == ("NOT_SUPPORTED", LOCKED)
    assert cuda.unlock([job.pid]) == {job.pid: RUNNING}
    job.counts_on()


# The dead man's switch. The timer kills the gpuckpt of the last case in the middle of its call.
VICTIM = """
import os, sys, threading
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda import Cuda
from gpuckpt.tools.run import Runner
pid, steps = int(sys.argv[1]), sys.argv[2:]
cuda = Cuda(Runner())
cuda.open({pid: CudaState.RUNNING})
cuda.lock([pid], 30)
if "timer" in steps: threading.Timer(1.0, os.kill, (os.getpid(), 9)).start()
if "checkpoint" in steps: cuda.checkpoint([pid])
os.kill(os.getpid(), 9)
"""


def die_after(pid: int, *steps: str) -> None:
    argv = (sys.executable, "-c", VICTIM, str(pid), *steps)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, env=env, check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("steps", [(), ("checkpoint",)], ids=["locked", "checkpointed"])
def test_when_gpuckpt_is_killed_the_job_runs_on(
    start: Start, cuda: Cuda, steps: tuple[str, ...]
) -> None:
    job = start()
    die_after(job.pid, *steps)
    wait(lambda: cuda.states([job.pid]) == {job.pid: RUNNING}, "way back to running")
    job.counts_on()
    assert demo_job.faults(job.log) == ()


def test_when_gpuckpt_is_killed_in_mid_checkpoint_the_job_runs_on(start: Start, cuda: Cuda) -> None:
    job = start("ballast.py", "8")
    die_after(job.pid, "timer", "checkpoint")
    job.counts_on()
    wait(lambda: cuda.states([job.pid]) == {job.pid: RUNNING}, "way back to running")


def test_the_programs_words_are_the_drivers() -> None:
    for words, name in ERROR_NAMES.items():
        result = getattr(driver.CUresult, f"CUDA_ERROR_{name}")
        status, text = driver.cuGetErrorString(result)
        assert int(status) == 0
        assert text.decode() == words
