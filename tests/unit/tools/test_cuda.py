"""Driver calls through real call processes; a stand-in program plays the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import Bug, CudaCallFailed, DriverUnfit
from gpuckpt.model import CudaState
from gpuckpt.tools import cuda_crew
from gpuckpt.tools.cuda import Cuda, NoCuda, choose
from gpuckpt.tools.cuda_caller import Caller
from gpuckpt.tools.cuda_crew import Patience
from gpuckpt.tools.run import Runner
from tests.fakes.cuda import FakeDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUNNING, LOCKED, CHECKPOINTED = CudaState.RUNNING, CudaState.LOCKED, CudaState.CHECKPOINTED
UUID = "GPU-0000aaaa-1111-2222-3333-444455556666"
OTHER = "GPU-9999ffff-1111-2222-3333-444455556666"
SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(300)")
HASTY = Patience(question=1.0, claim=0.2, copy=1.0, grace=1.0, unlock=1.0)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


@pytest.fixture
def jobs(driver: FakeDriver) -> Iterator[Callable[[int], list[int]]]:
    """Start processes that have CUDA, as the driver says."""
    started: list[subprocess.Popen[bytes]] = []

    def start(number: int) -> list[int]:
        new = [subprocess.Popen(SLEEP) for _ in range(number)]
        started.extend(new)
        for process in new:
            driver.put(process.pid)
        return [process.pid for process in new]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def cuda(driver: FakeDriver) -> Iterator[Cuda]:
    tool = choose(Runner(), environ=driver.environ)
    assert isinstance(tool, Cuda)
    yield tool
    tool.close()


@pytest.fixture
def hasty(driver: FakeDriver) -> Iterator[Cuda]:
    """Gives up soon, for calls that hang until the test takes their fault away."""
    tool = Cuda(Runner(), program=str(driver.program), patience=HASTY)
    yield tool
    tool.close()


def eventually(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20  # seconds; call processes start slowly on a busy machine
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.02)
    return what()


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def children() -> set[int]:
    """Return the call processes of this one."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"gpuckpt.tools.cuda_helper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(int(pid))
    return found


def mustered(cuda: Cuda) -> set[int]:
    """Have two start ahead, and a scout. One that is just being started has no name yet."""
    cuda.muster(2)
    assert eventually(lambda: len(children()) == 3)
    return children()


def test_there_and_back(cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]) -> None:
    pids = jobs(2)
    assert cuda.states(pids) == dict.fromkeys(pids, RUNNING)
    cuda.open(dict.fromkeys(pids, RUNNING))
    assert cuda.lock(pids, 2.5) == dict.fromkeys(pids, LOCKED)
    assert cuda.checkpoint(pids) == dict.fromkeys(pids, CHECKPOINTED)
    assert cuda.restore(pids, {UUID: OTHER}) == dict.fromkeys(pids, LOCKED)
    assert cuda.unlock(pids) == dict.fromkeys(pids, RUNNING)
    assert sorted(driver.calls()) == sorted(
        line
        for pid in pids
        for line in (
            f"{pid} lock 2500",
            f"{pid} checkpoint 0",
            f"{pid} restore 0 {UUID}={OTHER}",
            f"{pid} unlock 0",
        )
    )


def test_all_processes_are_acted_on_at_the_same_time(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    pids = jobs(3)
    for pid in pids:
        driver.fault(pid, "lock", meet=3)  # each ends only once the two others have begun
    cuda.open(dict.fromkeys(pids, RUNNING))
    assert cuda.lock(pids, 1) == dict.fromkeys(pids, LOCKED)


def test_who_is_there_already_is_left_alone(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, LOCKED)
    cuda.open({pid: LOCKED})
    assert cuda.lock([pid], 1) == {pid: LOCKED}
    assert cuda.restore([pid], {}) == {pid: LOCKED}
    assert driver.calls() == []


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (CHECKPOINTED, "lock"),
        (RUNNING, "checkpoint"),
        (RUNNING, "restore"),
        (CHECKPOINTED, "unlock"),
    ],
)
def test_an_illegal_step_is_refused_without_asking_the_driver(
    cuda: Cuda,
    driver: FakeDriver,
    jobs: Callable[[int], list[int]],
    state: CudaState,
    action: str,
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, state)
    cuda.open({pid: state})
    steps = {
        "lock": lambda: cuda.lock([pid], 1),
        "checkpoint": lambda: cuda.checkpoint([pid]),
        "restore": lambda: cuda.restore([pid], {}),
        "unlock": lambda: cuda.unlock([pid]),
    }
    with pytest.raises(CudaCallFailed, match="ILLEGAL_STATE") as caught:
        steps[action]()
    (outcome,) = caught.value.outcomes
    assert (outcome.before, outcome.after) == (state, state)
    assert driver.calls() == []


def test_a_lock_that_runs_out_of_time_says_where_everyone_is(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    busy, idle = jobs(2)
    driver.fault(busy, "lock", error="device not ready")
    cuda.open({busy: RUNNING, idle: RUNNING})
    with pytest.raises(CudaCallFailed) as caught:
        cuda.lock([busy, idle], 0.1)
    assert caught.value.timed_out
    first, second = caught.value.outcomes
    assert (first.pid, first.error, first.after) == (busy, "NOT_READY", RUNNING)
    assert (second.pid, second.ok, second.after) == (idle, True, LOCKED)
    assert cuda.unlock([busy, idle]) == {busy: RUNNING, idle: RUNNING}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("out of memory", "OUT_OF_MEMORY"),
        ("OS call failed or operation not supported on this OS", "OPERATING_SYSTEM"),
        ("operation not supported", "NOT_SUPPORTED"),
        ("invalid argument", "INVALID_VALUE"),
        ("something new", "UNKNOWN"),
    ],
)
def test_a_refusal_keeps_its_name_its_words_and_the_state(
    cuda: Cuda,
    driver: FakeDriver,
    jobs: Callable[[int], list[int]],
    words: str,
    name: str,
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, CHECKPOINTED)
    driver.fault(pid, "restore", error=words)
    cuda.open({pid: CHECKPOINTED})
    with pytest.raises(CudaCallFailed, match=words) as caught:
        cuda.restore([pid], {})
    (outcome,) = caught.value.failed
    assert (outcome.error, outcome.after, outcome.gone) == (name, CHECKPOINTED, False)
    assert not caught.value.timed_out


def test_success_is_believed_only_if_the_state_says_so(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.fault(pid, "unlock", state="locked")
    driver.put(pid, LOCKED)
    cuda.open({pid: LOCKED})
    with pytest.raises(CudaCallFailed, match="UNEXPECTED_STATE"):
        cuda.unlock([pid])


def test_a_process_that_the_lock_kills_is_not_called_a_timeout(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.fault(pid, "lock", kill=signal.SIGSEGV)
    cuda.open({pid: RUNNING})
    with pytest.raises(CudaCallFailed, match="the process died during lock") as caught:
        cuda.lock([pid], 1)
    assert caught.value.gone == (pid,)
    assert not caught.value.timed_out


def test_a_process_that_ended_by_itself_is_gone(
    cuda: Cuda, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: ended(pid))
    with pytest.raises(CudaCallFailed, match="the process is gone") as caught:
        cuda.lock([pid], 1)
    assert caught.value.gone == (pid,)
    assert cuda.states([pid]) == {pid: CudaState.NONE}


def test_opening_a_process_that_is_gone_is_an_error(
    cuda: Cuda, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: ended(pid))
    with pytest.raises(CudaCallFailed, match="gone"):
        cuda.open({pid: RUNNING})


def test_processes_without_cuda_have_no_state(cuda: Cuda) -> None:
    assert cuda.states([os.getpid()]) == {os.getpid(): CudaState.NONE}
    assert cuda.states([]) == {}


def test_acting_on_what_was_never_opened_is_a_bug(
    cuda: Cuda, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    with pytest.raises(Bug, match="never opened"):
        cuda.lock([pid], 1)


def test_a_state_that_cannot_be_read_names_the_pid_and_the_others_are_told(
    hasty: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    hanging, fine = jobs(2)
    driver.fault(hanging, "state", hold=True)
    with pytest.raises(CudaCallFailed) as caught:
        hasty.states([hanging, fine])
    driver.heal(hanging, "state")
    assert [one.pid for one in caught.value.failed if one.error == "NO_ANSWER"] == [hanging]
    assert [outcome.after for outcome in caught.value.outcomes] == [None, RUNNING]


def test_a_call_that_hangs_is_reported_and_can_be_gone_on_from(
    hasty: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    hasty.open({pid: RUNNING})
    hasty.lock([pid], 5)
    driver.fault(pid, "checkpoint", hold=True)
    with pytest.raises(CudaCallFailed, match="not come back from checkpoint") as caught:
        hasty.checkpoint([pid])
    assert [one.pid for one in caught.value.failed if one.error == "NO_ANSWER"] == [pid]
    with pytest.raises(CudaCallFailed, match="not come back from checkpoint"):
        hasty.unlock([pid])  # still busy: it must not be queued behind the other
    driver.heal(pid, "checkpoint")
    assert eventually(lambda: driver.state(pid) == CHECKPOINTED)
    assert hasty.restore([pid], {}) == {pid: LOCKED}
    assert hasty.unlock([pid]) == {pid: RUNNING}


def test_a_call_that_hangs_keeps_its_way_back_after_close(
    hasty: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    hasty.open({pid: RUNNING})
    hasty.lock([pid], 5)
    driver.fault(pid, "checkpoint", hold=True)
    with pytest.raises(CudaCallFailed):
        hasty.checkpoint([pid])
    hasty.close()
    driver.heal(pid, "checkpoint")
    assert eventually(lambda: driver.state(pid) == RUNNING)


def test_close_leaves_processes_as_they_are(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    cuda.lock([pid], 1)
    assert len(children()) == 2
    cuda.close()
    assert children() == set()
    assert driver.state(pid) == LOCKED


def test_two_gpuckpts_do_not_take_each_others_steps(
    cuda: Cuda, hasty: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    with pytest.raises(CudaCallFailed, match="another gpuckpt is at work") as caught:
        hasty.open({pid: RUNNING})
    assert caught.value.outcomes[0].error == "BUSY"
    with pytest.raises(CudaCallFailed, match="never opened"):
        hasty.lock([pid], 1)
    assert driver.calls() == []
    cuda.close()
    hasty.open({pid: RUNNING})
    assert hasty.lock([pid], 1) == {pid: LOCKED}
    assert hasty.unlock([pid]) == {pid: RUNNING}


def test_the_next_gpuckpt_waits_for_the_way_back_of_a_killed_one(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.fault(pid, "restore", hold=True)
    die_after(driver, pid, RUNNING, "lock", "checkpoint")
    threading.Timer(0.3, driver.heal, (pid, "restore")).start()
    cuda.open({pid: RUNNING})
    assert driver.state(pid) == RUNNING


def test_call_processes_are_deaf_to_signals_meant_for_us(
    cuda: Cuda, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    for helper in children():
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(helper, signum)
    assert cuda.lock([pid], 1) == {pid: LOCKED}


def test_a_call_process_that_ended_is_replaced(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    cuda.lock([pid], 1)
    victims = children()
    for helper in victims:
        os.kill(helper, signal.SIGKILL)
    assert eventually(lambda: all(ended(helper) for helper in victims))
    assert cuda.checkpoint([pid]) == {pid: CHECKPOINTED}
    assert driver.state(pid) == CHECKPOINTED


def test_those_that_were_mustered_are_taken(cuda: Cuda, jobs: Callable[[int], list[int]]) -> None:
    """One of those that wait dies: it is replaced, and the others are used."""
    ahead = mustered(cuda)
    victim = max(ahead)
    os.kill(victim, signal.SIGKILL)
    assert eventually(lambda: ended(victim))
    pids = jobs(2)
    assert cuda.states(pids) == dict.fromkeys(pids, RUNNING)
    cuda.open(dict.fromkeys(pids, RUNNING))
    assert len((children() | ahead) - {victim}) == 3
    assert cuda.lock(pids, 1) == dict.fromkeys(pids, LOCKED)
    assert cuda.unlock(pids) == dict.fromkeys(pids, RUNNING)


def test_those_that_were_mustered_and_not_needed_end(cuda: Cuda) -> None:
    ahead = mustered(cuda)
    cuda.close()
    assert eventually(lambda: all(ended(helper) for helper in ahead))


def test_describe_names_program_and_version(cuda: Cuda) -> None:
    backend = cuda.describe()
    assert (backend.kind, backend.version) == ("binary", "cuda-checkpoint 580.99.99")


def test_the_program_may_be_named_from_here(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(driver.folder)
    tool = choose(Runner(), environ={"GPUCKPT_CUDA_CHECKPOINT": "./program"})
    assert tool.describe().kind == "binary"
    tool.close()


def test_without_a_driver_nothing_is_started(tmp_path: Path) -> None:
    tool = choose(Runner(), root=tmp_path, environ={})
    assert isinstance(tool, NoCuda)
    assert tool.states([1, 2]) == {1: CudaState.NONE, 2: CudaState.NONE}
    assert tool.describe().kind == "none"
    tool.open({})
    assert tool.lock([], 1) == tool.checkpoint([]) == tool.restore([], {}) == tool.unlock([]) == {}
    tool.close()
    with pytest.raises(Bug, match="without an NVIDIA driver"):
        tool.lock([1], 1)
    assert children() == set()


def host_with_driver(root: Path) -> Path:
    (root / "dev").mkdir()
    (root / "dev" / "nvidiactl").touch()
    return root


NO_BINDINGS = pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="the bindings work on this machine"
)


@NO_BINDINGS
def test_the_program_in_path_is_the_second_choice(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cuda-checkpoint").symlink_to(driver.program)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    tool = choose(Runner(), root=host_with_driver(tmp_path), environ={})
    backend = tool.describe()
    tool.close()
    assert backend.kind == "binary"
    assert "libcuda" in backend.note


@NO_BINDINGS
def test_those_that_were_mustered_for_the_first_choice_are_not_taken(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str | None] = []

    class Seen(Caller):
        def __init__(self, runner: Runner, program: str | None) -> None:
            ways.append(program)
            super().__init__(runner, program)

    monkeypatch.setattr(cuda_crew, "Caller", Seen)
    second = str(driver.program)
    crew = cuda_crew.Crew(Runner(), None, second, HASTY)
    try:
        crew.muster(2)
        assert crew.backend().kind == "binary"
        assert ways == [None, None, None, second]
        crew.muster(1)
        assert ways == [None, None, None, second, second]
    finally:
        crew.let_go()


@NO_BINDINGS
def test_a_driver_that_nothing_can_talk_to_is_an_unfit_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = choose(Runner(), root=host_with_driver(tmp_path), environ={})
    with pytest.raises(DriverUnfit, match="libcuda"):
        tool.states([os.getpid()])
    tool.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [("#!/bin/sh\necho --toggle\n", "does not know --action"), (None, "was not found")],
)
def test_a_named_program_that_cannot_be_used_says_so(
    tmp_path: Path, text: str | None, why: str
) -> None:
    program = tmp_path / "old"
    if text is not None:
        program.write_text(text)
        program.chmod(0o755)
    tool = choose(Runner(), environ={"GPUCKPT_CUDA_CHECKPOINT": str(program)})
    with pytest.raises(DriverUnfit, match=why):
        tool.describe()
    tool.close()


# The dead man's switch: the process that opened, locked and checkpointed is killed.

VICTIM = """
import os, sys
from pathlib import Path
from gpuckpt.errors import CudaCallFailed
from gpuckpt.model import CudaState
from gpuckpt.tools.cuda import Cuda
from gpuckpt.tools.cuda_crew import Patience
from gpuckpt.tools.run import Runner
program, pid, first, steps = sys.argv[1], int(sys.argv[2]), CudaState(sys.argv[3]), sys.argv[4:]
cuda = Cuda(Runner(), program=program, patience=Patience(copy=0.5))
cuda.open({pid: first})
try:
    if "lock" in steps: cuda.lock([pid], 5)
    if "checkpoint" in steps: cuda.checkpoint([pid])
except CudaCallFailed: pass
print(*Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(), flush=True)
os.kill(os.getpid(), 9)
"""


def die_after(driver: FakeDriver, pid: int, first: CudaState, *steps: str) -> list[int]:
    """Have a gpuckpt killed after these steps; return its call processes, which live on."""
    argv = (sys.executable, "-c", VICTIM, str(driver.program), str(pid), first.value, *steps)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, stdout=subprocess.PIPE, env=env, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    return [int(pid) for pid in done.stdout.split()]


@pytest.mark.parametrize("steps", [("lock",), ("lock", "checkpoint")])
def test_when_gpuckpt_is_killed_the_job_comes_back(
    driver: FakeDriver, jobs: Callable[[int], list[int]], steps: tuple[str, ...]
) -> None:
    (pid,) = jobs(1)
    helpers = die_after(driver, pid, RUNNING, *steps)
    assert eventually(lambda: all(ended(helper) for helper in helpers))
    assert driver.state(pid) == RUNNING
    assert driver.calls()[-1] == f"{pid} unlock 0"


def test_when_gpuckpt_is_killed_in_mid_call_the_call_ends_first(
    driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.fault(pid, "checkpoint", hold=True)
    helpers = die_after(driver, pid, RUNNING, "lock", "checkpoint")
    driver.heal(pid, "checkpoint")
    assert eventually(lambda: all(ended(helper) for helper in helpers))
    assert driver.state(pid) == RUNNING
    assert [line.split()[1] for line in driver.calls()] == [
        "lock",
        "checkpoint",
        "restore",
        "unlock",
    ]


@pytest.mark.parametrize("first", [LOCKED, CHECKPOINTED])
def test_the_first_state_is_what_a_process_comes_back_to(
    driver: FakeDriver, jobs: Callable[[int], list[int]], first: CudaState
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, first)
    helpers = die_after(driver, pid, first, "checkpoint")
    assert eventually(lambda: all(ended(helper) for helper in helpers))
    assert driver.state(pid) == first


class Tracer:
    """Holds a process as CRIU does while it dumps."""

    def __init__(self, pid: int) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", TRACE, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == b"held\n"

    def let_go(self) -> None:
        self._child.communicate()


TRACE = """
import sys
from gpuckpt.tools.cuda_hold import Hold
hold = Hold(int(sys.argv[1]), -1)
hold.take()
print("held", flush=True)
sys.stdin.read()
hold.let_go()
"""


def test_a_parked_process_is_stopped_until_its_state_is_back(
    cuda: Cuda, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    assert cuda.open({pid: RUNNING}) == {pid: pid}
    cuda.lock([pid], 1)
    assert state_letter(pid) == "S"
    cuda.checkpoint([pid])
    assert state_letter(pid) == "T"
    assert cuda.states([pid]) == {pid: CHECKPOINTED}
    assert state_letter(pid) == "T"
    cuda.restore([pid], {})
    assert state_letter(pid) == "S"
    assert cuda.unlock([pid]) == {pid: RUNNING}


def test_a_parked_process_of_an_image_is_woken_through_its_thread(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, CHECKPOINTED)
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: state_letter(pid) == "T")
    assert cuda.open({pid: CHECKPOINTED}, {pid: pid}) == {pid: pid}
    assert state_letter(pid) == "T"
    cuda.restore([pid], {})
    cuda.unlock([pid])
    assert state_letter(pid) == "S"


def test_a_refused_restore_leaves_the_process_parked(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    cuda.lock([pid], 1)
    cuda.checkpoint([pid])
    driver.fault(pid, "restore", error="out of memory")
    with pytest.raises(CudaCallFailed):
        cuda.restore([pid], {})
    assert state_letter(pid) == "T"
    driver.heal(pid, "restore")
    cuda.restore([pid], {})
    assert state_letter(pid) == "S"


def test_a_refused_checkpoint_lets_the_process_run(
    cuda: Cuda, driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    cuda.open({pid: RUNNING})
    cuda.lock([pid], 1)
    driver.fault(pid, "checkpoint", error="operation not supported")
    with pytest.raises(CudaCallFailed):
        cuda.checkpoint([pid])
    assert state_letter(pid) == "S"


def test_a_stopped_process_is_not_asked(cuda: Cuda, jobs: Callable[[int], list[int]]) -> None:
    (pid,) = jobs(1)
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: state_letter(pid) == "T")
    with pytest.raises(CudaCallFailed) as caught:
        cuda.states([pid])
    assert caught.value.outcomes[0].error == "STOPPED"


def state_letter(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_nothing_is_done_while_criu_holds_the_process(
    driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, LOCKED)
    tracer = Tracer(pid)
    helpers = die_after(driver, pid, RUNNING)
    time.sleep(0.5)  # long enough for several looks; a slow machine only makes it easier
    assert driver.state(pid) == LOCKED
    tracer.let_go()
    assert eventually(lambda: all(ended(helper) for helper in helpers))
    assert driver.state(pid) == RUNNING


def test_nothing_is_done_to_a_process_that_criu_has_ended(
    driver: FakeDriver, jobs: Callable[[int], list[int]]
) -> None:
    (pid,) = jobs(1)
    driver.put(pid, LOCKED)
    tracer = Tracer(pid)
    helpers = die_after(driver, pid, RUNNING)
    os.kill(pid, signal.SIGKILL)
    tracer.let_go()
    assert eventually(lambda: all(ended(helper) for helper in helpers))
    assert driver.calls() == []
