"""First progress: what is seen of a job that goes on."""

from __future__ import annotations

from unittest import mock

from gpuckpt.flow.returning.motion import Motion


def watched(*times: dict[int, int]) -> tuple[Motion, list[str]]:
    seen: list[str] = []
    tools = mock.Mock(proc=mock.Mock(cpu_times=mock.Mock(side_effect=times)))
    motion = Motion(tools, (7,), lambda: seen.append("moved"))
    motion.begin()
    return motion, seen


def test_a_nanosecond_of_any_thread_is_progress_and_is_told_once() -> None:
    motion, seen = watched({7: 100, 8: 5}, {7: 100, 8: 5}, {7: 100, 8: 6}, {7: 200, 8: 9})
    motion.look()
    assert (motion.moved, seen) == (False, [])
    assert "no process of it used CPU time" in motion.reason
    motion.look()
    motion.look()
    assert (motion.moved, seen) == (True, ["moved"])


def test_a_new_thread_was_started_by_one_that_moved() -> None:
    motion, seen = watched({7: 100}, {7: 100, 9: 0})
    motion.wait(0.0)
    assert seen == ["moved"]


def test_a_job_that_ended_has_not_moved() -> None:
    motion, seen = watched({7: 100}, {})
    motion.look()
    assert not seen


def test_waiting_is_quick_at_first_and_never_longer_than_asked() -> None:
    motion, _ = watched(*[{7: 1}] * 40)
    with mock.patch("gpuckpt.flow.returning.motion.time.sleep") as sleep:
        for _ in range(30):
            motion.wait(0.05)
    slept = [one.args[0] for one in sleep.call_args_list]
    assert slept[0] < 0.01
    assert slept == sorted(slept)
    assert slept[-1] == 0.05
