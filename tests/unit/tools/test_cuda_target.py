"""Who a driver call is about, by a recorded /proc; and the room it needs, by a stub of NVML."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.model import CudaState, Gpu, GpuUse, NvidiaFacts, ProcessRef
from gpuckpt.tools.cuda_driver import Unsettled
from gpuckpt.tools.cuda_helper import Switch
from gpuckpt.tools.cuda_hold import Hold
from gpuckpt.tools.cuda_steps import read_state
from gpuckpt.tools.cuda_target import Claim, Room, Target
from gpuckpt.tools.cuda_wire import Ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(300)")
UUID = "GPU-0000aaaa-1111-2222-3333-444455556666"


def write_process(
    root: Path, pid: int = 7, *, state: str = "S", start: int = 50, **status: str
) -> None:
    """Record a process of one thread."""
    for folder in (root / str(pid), root / str(pid) / "task" / str(pid)):
        folder.mkdir(parents=True, exist_ok=True)
        fields = [state, "1", "1", "1", *["0"] * 15, str(start), "0"]
        (folder / "stat").write_text(f"{pid} (a job) {' '.join(fields)}\n")
        (folder / "status").write_text("".join(f"{k}:\t{v}\n" for k, v in status.items()))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    write_process(tmp_path)
    found = Target.look(7, tmp_path)
    assert found is not None
    return found


def test_a_process_is_found_with_its_start_time(target: Target) -> None:
    assert target.ref == ProcessRef(7, 50)
    assert target.alive()
    assert not target.held()


@pytest.mark.parametrize("change", [{"start": 51}, {"state": "Z"}, {"CoreDumping": "1"}])
def test_another_dead_or_dying_process_is_not_alive(
    tmp_path: Path, target: Target, change: dict[str, Any]
) -> None:
    write_process(tmp_path, **change)
    assert not target.alive()


@pytest.mark.parametrize("state", ["Z", "X"])
def test_what_is_left_of_a_process_is_nobody(tmp_path: Path, state: str) -> None:
    write_process(tmp_path, state=state)
    assert Target.look(7, tmp_path) is None
    assert Target.look(8, tmp_path) is None


@pytest.mark.parametrize("change", [{"state": "t"}, {"state": "T"}, {"TracerPid": "9"}])
def test_a_stopped_or_traced_thread_holds_it(
    tmp_path: Path, target: Target, change: dict[str, Any]
) -> None:
    write_process(tmp_path, **change)
    assert target.held()
    write_process(tmp_path)
    assert not target.held()


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(SLEEP) as process:
        yield process.pid
        process.kill()


def test_a_real_tracer_is_seen(sleeper: int) -> None:
    target = Target.look(sleeper)
    assert target is not None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, sleeper, None, None) != 0:
        pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
    assert target.held()
    libc.ptrace(PTRACE_INTERRUPT, sleeper, None, None)
    os.waitpid(sleeper, 0)
    assert libc.ptrace(PTRACE_DETACH, sleeper, None, None) == 0
    assert not target.held()


class StubNvidia:
    """NVML on a host with one GPU, of which a process holds a part."""

    def __init__(self, free: int, held: int) -> None:
        self.free = free
        self.held = held
        self.asked = 0

    def facts(self) -> NvidiaFacts:
        self.asked += 1
        return NvidiaFacts("580", "13.0", (Gpu(0, UUID, "H200", 100, self.free, ""),))

    def uses(self, pids: list[int]) -> tuple[GpuUse, ...]:
        return tuple(GpuUse(pid, UUID, self.held) for pid in pids)


def test_there_is_room_when_what_was_held_is_free(target: Target) -> None:
    nvidia: Any = StubNvidia(free=50, held=60)
    room = Room.of(target, nvidia)
    assert not room.enough()
    nvidia.free = 60
    assert room.enough()


OPEN = Ask(id=0, action="open", pid=7, first=CudaState.RUNNING)


class StubDriver:
    """A driver that does what it is told, one process."""

    backend = version = cuda = ""

    def __init__(self, state: CudaState) -> None:
        self.now = state
        self.unsettled = 0
        self.calls: list[str] = []

    def state(self, _pid: int) -> CudaState:
        if self.unsettled:
            self.unsettled -= 1
            raise Unsettled("NOT_SETTLED", "")
        return self.now

    def restore_thread(self, _pid: int) -> int:
        return 0  # not known: nothing is held

    def lock(self, _pid: int, _timeout_ms: int) -> None:
        self._do("lock", CudaState.LOCKED)

    def checkpoint(self, _pid: int) -> None:
        self._do("checkpoint", CudaState.CHECKPOINTED)

    def restore(self, _pid: int, _gpu_map: object) -> None:
        self._do("restore", CudaState.LOCKED)

    def unlock(self, _pid: int) -> None:
        self._do("unlock", CudaState.RUNNING)

    def _do(self, call: str, end: CudaState) -> None:
        self.calls.append(call)
        self.now = end


def test_a_state_in_between_is_waited_out() -> None:
    driver = StubDriver(CudaState.CHECKPOINTED)
    driver.unsettled = 2
    assert read_state(driver, 7, Hold(7, 0)) is CudaState.CHECKPOINTED


class Switches:
    """Switches that give their claims back when the test ends."""

    def __init__(self) -> None:
        self.made: list[Switch] = []

    def __call__(self, nvidia: Any, longest_hold: float = 20.0) -> Switch:
        self.made.append(Switch(nvidia, longest_hold))
        return self.made[-1]


@pytest.fixture
def switches() -> Iterator[Switches]:
    made = Switches()
    yield made
    for switch in made.made:
        switch.close()


def test_the_switch_never_restores_into_a_full_gpu(switches: Switches, target: Target) -> None:
    nvidia: Any = StubNvidia(free=40, held=60)
    driver = StubDriver(CudaState.CHECKPOINTED)
    switch = switches(nvidia, longest_hold=0.2)
    assert switch.arm(driver, target, OPEN)
    assert switch.act(driver) is None
    assert driver.calls == []
    assert nvidia.asked > 1
    nvidia.free = 60
    assert switch.act(driver) is CudaState.RUNNING
    assert driver.calls == ["restore", "unlock"]


def test_the_switch_unlocks_whatever_is_free(switches: Switches, target: Target) -> None:
    nvidia: Any = StubNvidia(free=0, held=60)
    driver = StubDriver(CudaState.LOCKED)
    switch = switches(nvidia)
    assert switch.arm(driver, target, OPEN)
    assert switch.act(driver) is CudaState.RUNNING
    assert driver.calls == ["unlock"]


def test_the_switch_gives_up_on_a_process_that_stays_stopped(
    switches: Switches, tmp_path: Path, target: Target
) -> None:
    driver = StubDriver(CudaState.LOCKED)
    switch = switches(StubNvidia(free=0, held=0), longest_hold=0.1)
    assert switch.arm(driver, target, OPEN)
    write_process(tmp_path, state="T")
    started = time.monotonic()
    assert switch.act(driver) is None
    assert time.monotonic() - started >= 0.1
    assert driver.calls == []


def test_a_process_has_one_claim_at_a_time(target: Target) -> None:
    first, second, third = Claim(target), Claim(target), Claim(target)
    assert first.take(0)
    assert not second.take(0.1)
    first.give_back()
    assert third.take(0)
    third.give_back()


def test_a_released_switch_does_nothing(switches: Switches, target: Target) -> None:
    driver = StubDriver(CudaState.LOCKED)
    switch = switches(StubNvidia(free=0, held=0))
    assert switch.act(driver) is None
    assert switch.arm(driver, target, OPEN)
    switch.release()
    assert switch.act(driver) is None
    assert driver.calls == []
