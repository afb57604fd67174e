"""Threads are trapped but for one, a process is parked, and CRIU takes it over without a step."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpuckpt.tools.criu import find
from gpuckpt.tools.cuda_hold import Hold, HoldFailed
from gpuckpt.tools.run import Command, Runner
from tests.root.harness import PATIENCE, Field, exists, lines_of, state_of, wait_for

pytestmark = pytest.mark.root

# every thread appends its number; the main thread says when all of them have begun
JOB = """
import os, sys, threading, time
ballast = os.urandom(256 << 20)  # keeps CRIU's parasite at work for a while
log = open(sys.argv[1], "a", buffering=1)
def count(number):
    while True:
        log.write(f"{number}\\n")
        time.sleep(0.005)
for number in range(1, 6):
    threading.Thread(target=count, args=(number,), daemon=True).start()
count(0)
"""


def start(place: Field, script: str, *more: str) -> subprocess.Popen[bytes]:
    """Start a job that no thread of ours waits for: it would hear of the traps in our place."""
    log = str(place.folder / "log")
    child = subprocess.Popen([sys.executable, "-c", script, log, *more], start_new_session=True)
    place.children.append(child)
    return child


@pytest.fixture
def job(place: Field) -> subprocess.Popen[bytes]:
    child = start(place, JOB)
    wait_for("all threads count", lambda: len(set(lines_of(place.folder / "log"))) == 6)
    return child


def threads(pid: int) -> list[int]:
    return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())


def letters(pid: int) -> str:
    paths = Path(f"/proc/{pid}/task").iterdir()
    stats = [(path / "stat").read_text().rpartition(")")[2].split()[0] for path in paths]
    return "".join(sorted(set(stats)))


def quiet(log: Path, but: int = 0) -> bool:
    """Whether nothing is written for a while, except by as many threads as given."""
    seen = len(lines_of(log))
    with pytest.raises(AssertionError, match="in vain"):
        wait_for("somebody writes", lambda: len(set(lines_of(log)[seen:])) > but, 0.3)
    return True


def take(hold: Hold, log: Path) -> None:
    """Trap all but the spared thread, at a moment when none of the trapped has Python's lock."""
    for _ in range(20):
        hold.take()
        seen = len(lines_of(log))
        with suppress(AssertionError):
            wait_for("the spared one writes", lambda seen=seen: len(lines_of(log)) > seen, 0.5)
            return
        hold.let_go()
    pytest.fail("the spared thread never ran")


def test_all_but_one_are_held_and_go_on(place: Field, job: subprocess.Popen[bytes]) -> None:
    """The spared thread runs, the others stand still, and later all go on."""
    log = place.folder / "log"
    spared = threads(job.pid)[3]
    hold = Hold(job.pid, spared)
    take(hold, log)
    assert quiet(log, but=1)
    seen = len(lines_of(log))
    wait_for("the spared one writes", lambda: len(lines_of(log)) > seen)
    hold.let_go()
    wait_for("all write again", lambda: len(set(lines_of(log)[seen:])) == 6)


def test_a_signal_on_its_way_is_not_lost(place: Field) -> None:
    """A thread that is trapped with a signal in hand gets it when it is let go."""
    script = (
        "import signal, sys, time\n"
        "log = open(sys.argv[1], 'a', buffering=1)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: log.write('signal\\n'))\n"
        "log.write('ready\\n')\n"
        "while True: time.sleep(0.001)\n"
    )
    log = place.folder / "log"
    child = start(place, script)
    wait_for("it is ready", lambda: lines_of(log))
    for number in range(1, 21):
        hold = Hold(child.pid, -1)
        child.send_signal(10)
        hold.take()
        hold.let_go()
        wait_for("it heard", lambda number=number: lines_of(log).count("signal") == number)


# threads come and go all the time; the first one may end for good
RESTLESS = """
import ctypes, sys, threading, time
log = open(sys.argv[1], "a", buffering=1)
def spawn():
    while True:
        brief = threading.Thread(target=lambda: None)
        brief.start()
        log.write("ended\\n")
        brief.join()
for _ in range(3):
    threading.Thread(target=spawn).start()
if sys.argv[2:]:
    ctypes.CDLL(None).syscall(60, 0)
"""


def hold_often(pid: int, times: int) -> list[str]:
    """Hold and let go in a thread that may be left behind, as a hold that hangs must not."""
    faults: list[str] = []

    def body() -> None:
        for _ in range(times):
            hold = Hold(pid, -1)
            try:
                hold.take()
            except HoldFailed as why:
                faults.append(str(why))
            hold.let_go()

    worker = threading.Thread(target=body, daemon=True)
    worker.start()
    worker.join(PATIENCE)
    return faults if not worker.is_alive() else ["it never came back"]


@pytest.mark.parametrize("leader", ["lives", "has-ended"])
def test_threads_that_end_meanwhile_do_not_matter(place: Field, leader: str) -> None:
    """A thread that ends between two looks is neither waited for nor a failure."""
    child = start(place, RESTLESS, *([] if leader == "lives" else ["end"]))
    wait_for("threads come and go", lambda: lines_of(place.folder / "log"))
    if leader == "has-ended":
        wait_for("the first thread has ended", lambda: state_of(child.pid) == "Z")
    assert hold_often(child.pid, 100) == []
    seen = len(lines_of(place.folder / "log"))
    wait_for("they go on", lambda: len(lines_of(place.folder / "log")) > seen)


def test_a_wake_that_fails_leaves_the_process_parked(
    place: Field, job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is still away: a thread that ran on would crash it."""
    hold = Hold(job.pid, threads(job.pid)[3])
    hold.take()
    hold.park()

    def refuse() -> None:
        hold.let_go()
        raise HoldFailed("thread 7 did not stop")

    monkeypatch.setattr(hold, "take", refuse)
    with pytest.raises(HoldFailed):
        hold.wake()
    assert hold.parked
    assert letters(job.pid) == "T"
    log = place.folder / "log"
    assert quiet(log)
    seen = len(lines_of(log))
    monkeypatch.undo()
    hold.wake()
    hold.let_go()
    wait_for("all write again", lambda: len(set(lines_of(log)[seen:])) == 6)


def test_a_parked_process_travels_through_criu(place: Field, job: subprocess.Popen[bytes]) -> None:
    """Parked, dumped, restored, woken: not one line is written before it is let go."""
    log = place.folder / "log"
    spared = threads(job.pid)[3]
    hold = Hold(job.pid, spared)
    take(hold, log)
    hold.park()
    assert letters(job.pid) == "T"
    written = lines_of(log)
    image = place.folder / "image"
    answer = place.gpuckpt("dump", job.pid, "-o", image)
    assert "stopped" in [one["id"] for one in answer.json["error"]["findings"]]
    _dump_with_criu(place, job.pid)
    job.wait()
    wait_for("the pid is free", lambda: not exists(job.pid))
    _restore_with_criu(place)
    place.restored.append(job.pid)
    # CRIU does not wait until they stand; none gets back into the program before it does
    wait_for("all stand", lambda: letters(job.pid) == "T")
    assert lines_of(log) == written
    back = Hold(job.pid, spared, parked=True)
    with back.awake():
        wait_for("only the spared one runs", lambda: set(lines_of(log)[len(written) :]) != set())
        assert quiet(log, but=1)
    assert letters(job.pid) == "T"
    back.wake()
    back.let_go()
    now = len(lines_of(log))
    wait_for("all write again", lambda: len(set(lines_of(log)[now:])) == 6)


def _dump_with_criu(place: Field, pid: int) -> None:
    folder = place.folder / "criu"
    folder.mkdir()
    _criu("dump", "-t", str(pid), "-D", str(folder))


def _restore_with_criu(place: Field) -> None:
    _criu("restore", "-d", "-D", str(place.folder / "criu"))


def _criu(*args: str) -> None:
    runner = Runner()
    runner.run(Command((find(runner).program, *args, "--no-default-config"), timeout=60))


def test_a_killed_criu_leaves_no_parasite_behind(
    place: Field, job: subprocess.Popen[bytes]
) -> None:
    """A thread that CRIU had at work is let out of the injected code before it is trapped again.

    It blocks all signals in there; afterwards it blocks what it blocked before. Mostly it leaves
    by itself in the moment of CRIU's death: a few rounds meet one that does not.
    """
    before = mask_of(job.pid)
    hold = Hold(job.pid, threads(job.pid)[3])
    try:
        for number in range(6):
            hold.take()
            hold.park()
            kill_criu_at_its_pages(job.pid, place.folder / f"criu-{number}")
            assert state_of(job.pid) not in "ZX", "CRIU was quicker than the test"
            inside = mask_of(job.pid) != before
            hold.wake()
            assert mask_of(job.pid) == before
            hold.let_go()
            if inside:
                break
    finally:
        # the end of a thread that is still traced is kept for us: nobody could wait for the job
        hold.let_go()
    log = place.folder / "log"
    now = len(lines_of(log))
    wait_for("all write again", lambda: len(set(lines_of(log)[now:])) == 6)


def kill_criu_at_its_pages(pid: int, folder: Path) -> None:
    """Kill it at work: earlier, while it injects its code, its end is that of the job too."""
    folder.mkdir()
    runner = Runner()
    argv = (find(runner).program, "dump", "-t", str(pid), "-D", str(folder), "--no-default-config")
    ends = time.monotonic() + PATIENCE
    with runner.start(Command(argv)) as criu:
        while not (folder / "pages-1.img").exists() and criu.poll() is None:
            assert time.monotonic() < ends, "CRIU does not get to the pages"
            time.sleep(0.0005)
        criu.kill()
        criu.wait()


def mask_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("SigBlk:"))
