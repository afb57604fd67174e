"""Pages of real processes: found, asked, let go on, and nothing else taken for one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt import cooperate
from gpuckpt.errors import ProcessUnfit, QuiesceFailed
from gpuckpt.flow.work import quiescing
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.tools.cooperation import LINK, Ranks, _opened
from gpuckpt.tools.descriptors import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PATIENCE = 30.0
PROC = Path("/proc")
FORKED: dict[int, int] = {}
# a copy beside the script, as a project has it, run without anything of gpuckpt's
JOB = """
import os, sys, time
import cooperate

down = {"fine": lambda: None, "fails": lambda: 1 / 0}[sys.argv[1]]
point = cooperate.Point(down, lambda: print("up", flush=True))
held = os.dup(point._fd)  # as what is forked from C inherits it
parent = os.getpid()
child = os.fork()
if child == 0:
    assert not point.here()
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(0)
os.close(held)
print(child, flush=True)
while True:
    point.here()
    time.sleep(0.001)
"""


@contextmanager
def job(folder: Path, how: str = "fine") -> Iterator[subprocess.Popen[str]]:
    shutil.copy(cooperate.__file__, folder / "cooperate.py")
    argv = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{JOB}"]
    child = subprocess.Popen([*argv, how], stdout=subprocess.PIPE, text=True)
    try:
        FORKED[child.pid] = int(line_of(child))
        yield child
    finally:
        child.kill()
        child.communicate()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def until(ready: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < ends, f"waited in vain: {what}"
        time.sleep(0.005)


def step_of(ranks: Ranks, pid: int) -> int:
    return ranks.look([pid])[0].step


def at_large(ranks: Ranks, pids: Sequence[int]) -> None:
    """See that all make further steps."""
    for pid in pids:
        before = step_of(ranks, pid)
        until(lambda pid=pid, before=before: step_of(ranks, pid) > before + 3, f"{pid} goes on")


@contextmanager
def pair(folder: Path) -> Iterator[tuple[tuple[subprocess.Popen[str], ...], Any]]:
    """Two jobs that make steps, and the tools of somebody who has not asked them yet."""
    tools: Any = SimpleNamespace(ranks=Ranks(PROC))
    with job(folder) as first, job(folder) as second:
        at_large(tools.ranks, [first.pid, second.pid])
        yield (first, second), tools


def test_two_that_agree(tmp_path: Path) -> None:
    """They stop at one step, stay, and go on; a forked child has no part in it."""
    calm = Interrupts()
    with pair(tmp_path) as ((first, second), tools):
        pids, ranks = [first.pid, second.pid], tools.ranks
        assert any(one.target == LINK and one.deleted for one in descriptors(PROC / str(pids[0])))
        assert ranks.look([FORKED[pid] for pid in pids]) == ()
        for _ in range(2):
            step = quiescing.agree(tools, calm, pids, PATIENCE)
            with pytest.raises(ProcessUnfit, match="another gpuckpt holds"):
                Ranks(PROC).ask(pids)
            quiescing.rest(tools, calm, pids, step, PATIENCE)
            time.sleep(0.05)
            assert {(one.step, one.quiet) for one in ranks.look(pids)} == {(step, step)}
            assert {one.pid for one in quiescing.standing(tools, pids)} == set(pids)
            assert quiescing.go_on(tools, pids) == []
            assert line_of(first) == line_of(second) == "up"
            at_large(ranks, pids)


def test_a_gpuckpt_that_is_gone(tmp_path: Path) -> None:
    """Before the decision they go on by themselves, after it they wait to be told."""
    calm = Interrupts()
    with pair(tmp_path) as ((first, second), tools):
        pids, ranks = [first.pid, second.pid], tools.ranks
        quiescing.agree(tools, calm, pids, PATIENCE)
        ranks.close()  # as the kernel does
        at_large(ranks, pids)
        step = quiescing.agree(tools, calm, pids, PATIENCE)
        ranks._held[pids[0]].write(cooperate.W_CONFIRMED, step)  # and no further
        ranks.close()
        until(lambda: all(one.quiet == step for one in Ranks(PROC).look(pids)), "both let go")
        assert quiescing.go_on(tools, pids) == []
        at_large(ranks, pids)


def test_one_that_cannot_see_the_decision_stays(tmp_path: Path) -> None:
    """As a process of another user does; the repair tells it what the others know."""
    calm = Interrupts()
    with pair(tmp_path) as ((first, second), tools):
        pids, ranks = [first.pid, second.pid], tools.ranks
        ranks.ask(pids)
        ranks._held[pids[1]].write(cooperate.W_LEADER, 0)
        ask, ranks.ask = ranks.ask, lambda _: None  # type: ignore[method-assign]
        step = quiescing.agree(tools, calm, pids, PATIENCE)
        ranks.ask = ask  # type: ignore[method-assign]
        ranks._held[pids[0]].write(cooperate.W_CONFIRMED, step)
        ranks.close()
        until(lambda: Ranks(PROC).look(pids)[0].quiet == step, "the first lets go")
        time.sleep(0.05)
        assert [one.pid for one in quiescing.standing(tools, pids)] == pids
        assert quiescing.go_on(tools, pids) == []
        assert line_of(second) == "up", "it did not let go as the others had"
        at_large(ranks, pids)


def test_a_callback_that_fails(tmp_path: Path) -> None:
    tools: Any = SimpleNamespace(ranks=Ranks(PROC))
    with job(tmp_path, "fails") as child:
        at_large(tools.ranks, [child.pid])
        step = quiescing.agree(tools, Interrupts(), [child.pid], PATIENCE)
        with pytest.raises(QuiesceFailed, match="down: ZeroDivisionError: division by zero"):
            quiescing.rest(tools, Interrupts(), [child.pid], step, PATIENCE)
        assert quiescing.go_on(tools, [child.pid]) == []
        at_large(tools.ranks, [child.pid])
        child.kill()
        child.wait()
        with pytest.raises(QuiesceFailed, match="cooperates no more"):
            quiescing.still_quiet(tools, [child.pid])
        with pytest.raises(QuiesceFailed, match="does not cooperate"):
            tools.ranks.ask([child.pid])


def test_only_a_page_is_opened(tmp_path: Path) -> None:
    """What a job puts in the place of its page is never written to."""
    trap = tmp_path / "trap"
    trap.write_text("mine")
    with trap.open() as file:
        assert _opened(f"/proc/self/fd/{file.fileno()}", os.O_RDWR) is None
    short = os.memfd_create(cooperate.NAME)
    try:
        fd = _opened(f"/proc/self/fd/{short}", os.O_RDWR)
        assert fd is not None
        os.close(fd)
        assert Ranks(PROC).look([os.getpid()]) == ()
    finally:
        os.close(short)


def test_a_point_that_nobody_asks() -> None:
    ranks = Ranks(PROC)
    point = cooperate.Point(lambda: None, lambda: None)
    try:
        with pytest.raises(RuntimeError, match="already"):
            cooperate.Point(lambda: None, lambda: None)
        assert not any(point.here() for _ in range(100))
        (seen,) = ranks.look([os.getpid()])
        assert (seen.step, seen.waits, seen.asked) == (100, False, False)
        point._words[cooperate.W_VERSION] = 2
        with pytest.raises(QuiesceFailed, match="version 2"):
            ranks.ask([os.getpid()])
    finally:
        ranks.close()
        point.close()
    assert not point.here()
    assert ranks.look([os.getpid()]) == ()
