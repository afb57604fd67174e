"""The rounds of a lock: bounded together, short first, and what they tell when all was in vain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpuckpt.errors import CudaCallFailed
from gpuckpt.flow.gpu import rounds
from gpuckpt.flow.gpu.rounds import Rounds
from gpuckpt.model import CudaOutcome, CudaState


@dataclass
class Clock:
    """A clock that only goes when it is told to."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rounds, "time", made)
    return made


def refusal(late: list[int], held: list[int]) -> CudaCallFailed:
    running, locked = CudaState.RUNNING, CudaState.LOCKED
    outcomes = [CudaOutcome(pid, "lock", "NOT_READY", running, running) for pid in late]
    return CudaCallFailed("lock", [*outcomes, *(_held(pid, locked) for pid in held)])


def _held(pid: int, state: CudaState) -> CudaOutcome:
    return CudaOutcome(pid, "lock", "", CudaState.RUNNING, state)


@pytest.mark.parametrize("timeout", [0.05, 1.0, 30.0, 600.0])
def test_all_tries_and_waits_together_take_no_longer_than_was_allowed(
    clock: Clock, timeout: float
) -> None:
    """Each try takes all the time it is given, the worst there is."""
    tried, ends = Rounds(timeout), clock.now + timeout
    while not tried.over:
        clock.now += tried.begin([1, 2])
        tried.missed(refusal([1], [2]))
        assert clock.now <= ends + 0.002
        tried.rest()
    assert tried.count > 1
    assert clock.now <= ends + 0.002


def test_the_waits_between_two_tries_differ(clock: Clock) -> None:
    tried, waits = Rounds(30.0), set()
    for _ in range(8):
        before = clock.now
        tried.rest()
        waits.add(clock.now - before)
    assert len(waits) == 8
    assert all(0 <= wait <= 0.02 for wait in waits)


def test_a_process_alone_gets_all_the_time_at_once(clock: Clock) -> None:
    """It waits for nobody that is held: letting go of it and asking again helps nothing."""
    tried = Rounds(30.0)
    assert tried.begin([7]) == 30.0
    clock.now += 30.0
    tried.missed(refusal([7], []))
    error = tried.given_up()
    assert error.message == "the driver could not hold process 7 within 30 s"
    assert "long kernel" in error.hint
    assert error.excerpt == ()


def test_one_that_was_never_held_is_told_from_those_that_wait_for_each_other(clock: Clock) -> None:
    """The same message for both would send the operator to the wrong process."""
    tried = Rounds(10.0)
    for _ in range(3):
        tried.begin([1, 2, 3])
        tried.missed(refusal([2], [1, 3]))
    error = tried.given_up()
    assert error.message == (
        "the driver could not hold process 2 within 10 s (3 rounds); process 1, 3 was held and let "
        "go again"
    )
    assert error.hint.startswith("The others were held every time: process 2 runs a kernel")
    assert error.excerpt[:2] == (
        "process 1: held in 3 of 3 rounds",
        "process 2: held in 0 of 3 rounds",
    )
    clock.now += 1
    tried.begin([1, 2, 3])
    tried.missed(refusal([1], [2, 3]))
    error = tried.given_up()
    assert error.message.startswith("the driver could not hold process 1 within 10 s (4 rounds)")
    assert error.hint.startswith("They wait for each other by turns")


def test_long_tries_grow_with_the_time_allowed(clock: Clock) -> None:
    """A kernel of twenty seconds in a job of many ranks needs more than --lock-timeout alone."""
    longest = {}
    for timeout in (10.0, 120.0):
        tried, tries = Rounds(timeout), []
        while not tried.over:
            tries.append(tried.begin([1, 2]))
            clock.now += tries[-1]
        longest[timeout] = max(tries)
    assert longest[10.0] <= 5.0
    assert longest[120.0] > 20.0


def test_workers_that_keep_coming_are_named(clock: Clock) -> None:
    assert clock.now
    tried = Rounds(1.0)
    tried.begin([1])
    error = tried.given_up([9, 8])
    assert "process 8, 9 has started CUDA meanwhile" in error.message
    assert "workers" in error.hint
