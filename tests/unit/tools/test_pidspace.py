"""Pid namespaces of ours, told from a recorded /proc: whose they are, and the numbers in them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from gpuckpt.model import ProcessRef
from gpuckpt.tools import pidspace_init
from gpuckpt.tools.pidspace import NewSpace, Space, Spaces, descends

if TYPE_CHECKING:
    from pathlib import Path


def record(root: Path, pid: int, parent: int, inner: str = "", comm: str = "job") -> None:
    """Write down a process with one thread; `inner` is its number in a namespace."""
    folder = root / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "ns").mkdir()
    (folder / "ns" / "pid").symlink_to("pid:[2]" if inner else "pid:[1]")
    rest = " ".join(["0"] * 14)
    (folder / "stat").write_text(f"{pid} ({comm}) S {parent} {pid} {pid} {rest} 0 {pid * 10} 0\n")
    seen = f"{pid}\t{inner}".strip()
    status = f"Name:\t{comm}\nNSpid:\t{seen}\nNSpgid:\t{seen}\nNSsid:\t{seen}\n"
    (folder / "status").write_text(status)
    (folder / "task" / str(pid) / "status").write_text(status)


def world(root: Path, comm: str = "gpuckpt-init") -> Spaces:
    record(root, 1, 0, comm="init")
    record(root, 50, 1, "1", comm=comm)
    record(root, 51, 50, "700")
    record(root, 52, 51, "701")
    (root / "self").symlink_to("1")
    return Spaces(root)


def test_a_namespace_is_known_by_its_process_1(tmp_path: Path) -> None:
    spaces = world(tmp_path)
    assert spaces.of(52) == spaces.of(50) == Space(ProcessRef(50, 500))
    assert spaces.of(1) is None
    assert spaces.of(99) is None
    assert world(tmp_path / "other", comm="tini").of(52) is None


def test_numbers_of_here_and_there(tmp_path: Path) -> None:
    spaces = world(tmp_path)
    assert spaces.numbers(Space(ProcessRef(50, 500))) == {50: 1, 51: 700, 52: 701}


def test_only_memory_is_reached_another_way() -> None:
    space = Space(ProcessRef(50, 500))
    assert space.reach("/dev/shm/sem.x") == "/proc/50/root/dev/shm/sem.x"
    assert space.named(space.reach("/dev/shm/sem.x")) == "/dev/shm/sem.x"
    assert space.reach("/data/log") == space.named("/data/log") == "/data/log"


def test_criu_gets_numbers_that_the_job_has_not() -> None:
    def ready(_: Space) -> None:
        raise AssertionError

    assert NewSpace(7, (7, 8, 31_000), ready).free == 300
    assert NewSpace(7, (7, 599, 899), ready).free == 900
    assert NewSpace(7, tuple(range(100, 30_000, 100)), ready).free == 30_000


def test_whether_a_process_is_below_another(tmp_path: Path) -> None:
    world(tmp_path)
    assert descends(tmp_path, 52, 50)
    assert descends(tmp_path, 52, 52)
    assert not descends(tmp_path, 50, 52)
    assert not descends(tmp_path, 0, 50)


@pytest.mark.parametrize(("number", "both"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_what_a_terminal_sends_is_for_the_whole_group(number: int, *, both: bool) -> None:
    """Workers of a job get Ctrl-C with it, or their parent waits for them for ever."""
    script = "import os, time; print(os.fork(), flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True,
        stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        try:
            assert job.stdout is not None
            told = {int(job.stdout.readline()), int(job.stdout.readline())}
            (worker,) = told - {0}
            watch = os.pidfd_open(worker)
            pidspace_init.deliver(job.pid, number)
            assert job.wait(60) != 0
            ended, _, _ = select.select([watch], [], [], 60 if both else 0.2)
            assert bool(ended) is both
            os.close(watch)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
