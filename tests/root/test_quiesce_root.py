"""Two processes whose ties cannot be dumped: they let go of them, and take them up again."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

from tests.root.harness import lines_of, wait_for

if TYPE_CHECKING:
    import pytest

    from tests.root.fake_gpu import Stage
    from tests.root.harness import Field

FACTOR, PRIME = 31, (1 << 61) - 1


def pair(place: Field, how: str = "plain") -> subprocess.Popen[bytes]:
    child = place.job("pair.py", how)
    goes_on(place, 3)
    return child


def done(place: Field) -> list[int]:
    """Return how many steps each of both has made."""
    return [len(lines_of(place.folder / f"log.{one}")) for one in range(2)]


def goes_on(place: Field, steps: int = 2) -> None:
    before = done(place)
    wait_for(
        "both go on",
        lambda: all(now >= was + steps for was, now in zip(before, done(place), strict=True)),
    )


def assert_nothing_was_lost(place: Field) -> None:
    """Every sum of both follows from the beginning; no step is missing or made twice."""
    sums = [1, 2]
    logs = [lines_of(place.folder / f"log.{one}") for one in range(2)]
    for step in range(1, min(map(len, logs)) + 1):
        for _ in range(2):
            sums = [(FACTOR * sums[one] + sums[1 - one] + one) % PRIME for one in range(2)]
        assert [log[step - 1] for log in logs] == [f"{step} {total}" for total in sums]


def test_dump_and_restore_at_a_step(place: Field) -> None:
    child = pair(place)
    image = place.folder / "image"
    plain = place.gpuckpt("dump", child.pid, "-o", image)
    assert plain.error == "blocked"
    goes_on(place)
    # it goes on: in place, with an image and without, and it can be done again
    stays = place.gpuckpt("dump", child.pid, "-o", image, "--quiesce", "--leave-running").result
    assert len(stays["quiesced"]) == 2
    assert {"quiesce", "look again", "resume"} <= {
        phase["name"] for phase in stays["receipt"]["phases"]
    }
    goes_on(place)
    scratch = place.folder / "scratch"
    assert place.gpuckpt("rehearse", child.pid, "--dump", "--quiesce", "-o", scratch).code == 0
    goes_on(place)
    image.rename(place.folder / "first")
    place.dump(child, "--quiesce")
    steps = done(place)
    assert steps[0] == steps[1], "they did not stop at the same step"
    place.restore(image)
    goes_on(place)
    assert_nothing_was_lost(place)


def test_who_does_not_come_or_cannot_let_go(place: Field) -> None:
    """It is named, and all go on as before."""
    child = pair(place, "late")
    (place.folder / "late").touch()
    image = place.folder / "image"
    options = ("--quiesce", "--quiesce-timeout", "0.5")
    late = place.gpuckpt("dump", child.pid, "-o", image, *options)
    assert (late.code, late.error) == (5, "quiesce_timeout")
    assert "did not come to the end of step" in late.json["error"]["message"]
    (place.folder / "late").unlink()
    goes_on(place)
    # a gpuckpt that is killed while it waits lets them go on too
    (place.folder / "late").touch()
    argv = place.command("dump", child.pid, "-o", image, "--quiesce")
    waiting = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if b"quiesce: begins" in line:
            break
    waiting.kill()
    waiting.stderr.close()
    waiting.wait()
    (place.folder / "late").unlink()
    goes_on(place)
    wait_for("nothing is left", lambda: place.gpuckpt("repair").code == 0)
    assert_nothing_was_lost(place)


def test_a_callback_that_fails(place: Field) -> None:
    child = pair(place, "broken")
    image = place.folder / "image"
    broken = place.gpuckpt("dump", child.pid, "-o", image, "--quiesce")
    assert (broken.code, broken.error) == (5, "quiesce_failed")
    assert "down: RuntimeError: the well is dry" in broken.json["error"]["message"]
    assert not image.exists()
    goes_on(place)


def test_killed_at_rest(place: Field) -> None:
    """They wait for the repair, which is told of by all."""
    child = pair(place)
    image = place.folder / "image"
    argv = place.command("dump", child.pid, "-o", image, "--quiesce")
    dumping = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert dumping.stderr is not None
    for line in dumping.stderr:
        if b"look again: begins" in line:
            break
    dumping.send_signal(signal.SIGKILL)
    dumping.stderr.close()
    dumping.wait()
    status = place.gpuckpt("status", child.pid)
    assert status.error == "unfinished"
    assert "left-quiet" in {one["id"] for one in status.json["error"]["findings"]}
    assert place.gpuckpt("dump", child.pid, "-o", image, "--quiesce").code == 10
    assert place.gpuckpt("repair").code == 0
    goes_on(place)
    assert_nothing_was_lost(place)


def test_in_a_pid_namespace(place: Field) -> None:
    """What each calls itself is another number there, and they find each other all the same."""
    child = pair(place)
    image = place.dump(child, "--quiesce")
    root = place.restore(image, "--pid-namespace")
    goes_on(place)
    again = place.folder / "again"
    stays = place.gpuckpt("dump", root, "-o", again, "--quiesce", "--leave-running").result
    assert child.pid in stays["quiesced"]
    goes_on(place)
    assert_nothing_was_lost(place)


def test_ranks_with_their_gpu_state_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on only when the driver has given their state back."""
    monkeypatch.setenv("GPU_JOB_COOPERATE", "1")
    launcher, pids = stage.start_ranks(2)
    logs = [stage.log.with_name(f"{stage.log.name}.{rank}") for rank in range(2)]
    image = stage.place.folder / "image"
    dumped = stage.gpuckpt("dump", launcher.pid, "-o", image, "--quiesce").result
    assert sorted(dumped["quiesced"]) == sorted(pids)
    phases = [one["name"] for one in dumped["receipt"]["phases"]]
    assert phases.index("quiesce") < phases.index("lock") < phases.index("gpu-out")
    steps = {log.read_text().splitlines()[-1] for log in logs}
    assert len(steps) == 1, "they did not stop at the same step"
    restored = stage.gpuckpt("restore", image, "--settle", "0.2").result
    stage.place.restored += restored["pids"]
    phases = [one["name"] for one in restored["receipt"]["phases"]]
    assert phases.index("gpu-in") < phases.index("resume") < phases.index("verify")
    for log in logs:
        wait_for("it rested and goes on", lambda log=log: "rested" in log.read_text())
        assert "rested, device open" in lines_of(log)
