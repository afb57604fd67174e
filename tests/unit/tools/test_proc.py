"""Processes are found, told apart and ended, among others that come and go."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.errors import NoSuchProcess, NotPrivileged
from gpuckpt.model import ProcessRef
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.procfs import parse_stat, stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 20.0  # seconds; a loaded machine starts an interpreter slowly


@contextmanager
def running(code: str, *args: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python code that prints a line when it is ready, and end it afterwards."""
    popen = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *args], stdout=subprocess.PIPE, **more
    )
    with popen:
        try:
            assert popen.stdout is not None
            assert popen.stdout.readline()
            yield popen
        finally:
            popen.kill()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


SLEEP = "import time; print(1, flush=True); time.sleep(600)"


def ref(pid: int) -> ProcessRef:
    found = Proc().process(pid)
    assert found is not None
    return found.ref


def test_a_process_is_described() -> None:
    with running(SLEEP, "an argument", cwd="/tmp", start_new_session=True) as popen:
        found = Proc().process(popen.pid)
        assert found is not None
        assert found.pid == found.pgid == found.sid == popen.pid
        assert found.ppid == os.getpid()
        assert found.argv[-1] == "an argument"
        assert found.exe == os.path.realpath(sys.executable)
        assert found.cwd == "/tmp"
        assert (found.uid, found.gid) == (os.getuid(), os.getgid())
        assert found.threads == (popen.pid,)
        assert found.rss > 1 << 20
        assert not found.zombie
        assert not found.kernel_thread
        assert found.tracer == 0


def test_names_with_spaces_and_parentheses_do_not_confuse() -> None:
    code = "import pathlib; pathlib.Path('/proc/self/comm').write_text(') R 1 (x y');" + SLEEP
    with running(code) as popen:
        found = Proc().process(popen.pid)
        assert found is not None
        assert found.comm == ") R 1 (x y"
        assert found.ppid == os.getpid()


def test_a_number_that_is_no_process_is_none() -> None:
    assert Proc().process(2**22 + 1) is None
    with pytest.raises(NoSuchProcess):
        Proc().tree(2**22 + 1)


def test_a_thread_is_not_a_process() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert Proc().process(thread.native_id) is None
        with pytest.raises(NoSuchProcess):
            Proc().tree(thread.native_id)
        mine = Proc().process(os.getpid())
        assert mine is not None
        assert thread.native_id in mine.threads
        assert Proc().taken([thread.native_id]) == (thread.native_id,)
    finally:
        done.set()
        thread.join()


FAMILY = """
import os, sys, time
def grow(depth):
    for _ in range(2 if depth else 0):
        if os.fork() == 0:
            grow(depth - 1)
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(600)
            os._exit(0)
os.setsid()
grow(2)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""


def test_a_tree_lists_all_descendants_parents_first() -> None:
    with running(FAMILY) as popen:
        try:
            wait_until(lambda: len(Proc().tree(popen.pid).pids) == 7)
            tree = Proc().tree(popen.pid)
            assert tree.root.pid == popen.pid
            for at, process in enumerate(tree.processes[1:], 1):
                assert process.ppid in tree.pids[:at]
            assert all(process.sid == popen.pid for process in tree.processes)
        finally:
            os.killpg(popen.pid, signal.SIGKILL)


def test_trees_can_be_listed_while_processes_come_and_go() -> None:
    churn = "import os\nprint(1, flush=True)\nwhile 1:\n if os.fork() == 0: os._exit(0)\n os.wait()"
    with running(churn) as popen:
        for _ in range(30):
            tree = Proc().tree(popen.pid)
            assert tree.root.pid == popen.pid
            assert len(set(tree.pids)) == len(tree.pids)


def test_a_zombie_is_no_living_process() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as popen:
        wait_until(lambda: bool((found := Proc().process(popen.pid)) and found.zombie))
        found = Proc().process(popen.pid)
        assert found is not None
        assert found.threads == (popen.pid,)
        assert found.argv == ()
        assert not Proc().alive(found.ref)
        assert Proc().taken([popen.pid]) == (popen.pid,)
        assert Proc().devices([popen.pid]) == ()
    assert not Proc().taken([popen.pid])


LEADERLESS = """
import ctypes, os, threading, time
def work():
    time.sleep(0.1)
    print(1, flush=True)
    time.sleep(600)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(60, 0)
"""


def test_a_process_outlives_its_first_thread() -> None:
    with running(LEADERLESS) as popen:
        found = Proc().process(popen.pid)
        assert found is not None
        assert found.state == "Z"
        assert len(found.threads) == 2
        assert not found.zombie
        assert Proc().alive(found.ref)


def test_identity_is_pid_and_start_time() -> None:
    with running(SLEEP) as popen:
        mine = ref(popen.pid)
        other = ProcessRef(mine.pid, mine.start_time + 1)
        assert Proc().alive(mine)
        assert not Proc().alive(other)
        Proc().kill(other)
        assert Proc().alive(mine)
        Proc().kill(mine)
        assert popen.wait(PATIENCE) == -signal.SIGKILL
        Proc().kill(mine)
        assert not Proc().alive(mine)


def test_ancestors_lead_to_the_first_process() -> None:
    above = Proc().ancestors(os.getpid())
    assert above[0] == os.getppid()
    assert len(set(above)) == len(above)
    assert Proc().ancestors(2**22 + 1) == ()


def test_every_process_is_listed() -> None:
    assert {1, os.getpid(), os.getppid()} <= set(Proc().pids())


def test_reaping_touches_only_the_pids_it_is_given() -> None:
    mine, others = os.fork(), 0
    if mine == 0:
        os._exit(7)
    with subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"]) as popen:
        others = popen.pid
        proc = Proc()
        wait_until(lambda: all(p.zombie for pid in (mine, others) if (p := proc.process(pid))))
        assert proc.reap([mine, os.getppid()]) == {mine: 7}
        assert proc.reap([mine]) == {}
        assert popen.wait(PATIENCE) == 3


def test_reaping_does_not_wait() -> None:
    with running(SLEEP) as popen:
        assert Proc().reap([popen.pid]) == {}
        popen.kill()
        wait_until(lambda: Proc().reap([popen.pid]) == {popen.pid: -signal.SIGKILL})


def test_a_living_group_keeps_its_number_taken() -> None:
    # the group's first process ends and is waited for; its child lives on in the group
    code = (
        "import os, time\nos.setsid()\npid = os.fork()\n"
        "if pid: os.write(1, b'%d\\n' % pid); os._exit(0)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as popen:
        assert popen.stdout is not None
        child = int(popen.stdout.readline())
        try:
            popen.wait(PATIENCE)
            assert Proc().process(popen.pid) is None
            assert Proc().taken([popen.pid]) == (popen.pid,)
        finally:
            os.kill(child, signal.SIGKILL)
    wait_until(lambda: not Proc().taken([popen.pid]))


def test_nothing_is_taken_where_nothing_runs() -> None:
    assert Proc().taken([2**22 + 1, 2**22 + 2]) == ()


# --- recorded folders: what this machine cannot show ---------------------------------------------


def record(root: Path, pid: int, stat: str = "", **files: str) -> Path:
    folder = root / str(pid)
    (folder / "fd").mkdir(parents=True)
    tail = " ".join(["0"] * 12 + ["777"] + ["0"] * 30)
    (folder / "stat").write_text(stat or f"{pid} (job) S 1 {pid} {pid} 0 -1 0 {tail}")
    (folder / "status").write_text(f"Name:\tjob\nTgid:\t{pid}\nUid:\t7 8 9 9\n")
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("flags", "pending", "alive"), [(0, 0, True), (4, 0, False), (0, 1 << 8, False)]
)
def test_a_process_that_is_being_killed_is_as_good_as_gone(
    tmp_path: Path, flags: int, pending: int, alive: bool
) -> None:
    """It can take seconds to get there, and must not be taken for one that goes on."""
    stat = f"7 (job) S 1 7 7 0 -1 {flags} " + " ".join(["0"] * 12 + ["777"] + ["0"] * 30)
    folder = record(tmp_path, 7, stat)
    (folder / "status").write_text(f"Tgid:\t7\nSigPnd:\t{0:016x}\nShdPnd:\t{pending:016x}\n")
    assert Proc(tmp_path).alive(ProcessRef(7, 777)) is alive


MAPS = """\
7f0000000000-7f0000001000 rw-s 00000000 00:06 1045                       /dev/nvidia0
7f0000001000-7f0000002000 rw-s 00001000 00:06 1045                       /dev/nvidia0
7f0000002000-7f0000003000 rw-s 00000000 00:05 99                         /dev/infiniband/uverbs0
7f0000003000-7f0000004000 r--p 00000000 08:01 5                          /usr/lib/libnvidia-ml.so.1
7f0000004000-7f0000005000 rw-p 00000000 00:00 0                          [heap]
7f0000005000-7f0000006000 rw-p 00000000 00:00 0 
"""  # noqa: W291 - the kernel writes it so


def test_device_files_are_found_by_descriptor_and_by_mapping(tmp_path: Path) -> None:
    folder = record(tmp_path, 10, maps=MAPS)
    for fd, target in enumerate(
        [
            "/dev/null",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-caps/nvidia-cap1",
            "/dev/gdrdrv",
            "/home/me/dev/nvidia0",
            "/dev/nvidia3 (deleted)",
        ]
    ):
        (folder / "fd" / str(fd)).symlink_to(target)
    held = Proc(tmp_path).devices([10, 11])
    assert [(use.fd, use.path) for use in held] == [
        (1, "/dev/nvidiactl"),
        (2, "/dev/nvidia-uvm"),
        (3, "/dev/nvidia-caps/nvidia-cap1"),
        (4, "/dev/gdrdrv"),
        (6, "/dev/nvidia3"),
        (None, "/dev/infiniband/uverbs0"),
        (None, "/dev/nvidia0"),
    ]
    assert {use.pid for use in held} == {10}


def test_kernel_threads_are_recognised(tmp_path: Path) -> None:
    line = "2 (kworker/0:1) I 0 0 0 0 -1 69238880 " + " ".join(["0"] * 12 + ["4"] + ["0"] * 30)
    record(tmp_path, 2, line)
    found = Proc(tmp_path).process(2)
    assert found is not None
    assert found.kernel_thread
    assert found.command == "[kworker/0:1]"


def test_bytes_that_are_no_text_become_escapes(tmp_path: Path) -> None:
    folder = record(tmp_path, 10)
    (folder / "cmdline").write_bytes(b"a\xff\0b c\0\0\0")
    os.symlink(b"/x/\xfe", os.fsencode(folder / "exe"))  # noqa: PTH211
    found = Proc(tmp_path).process(10)
    assert found is not None
    assert found.argv == ("a\\xff", "b c")
    assert found.exe == "/x/\\xfe"
    assert (found.uid, found.cwd) == (7, "")


def test_an_empty_stat_is_a_process_that_has_gone(tmp_path: Path) -> None:
    folder = record(tmp_path, 10)
    (folder / "stat").write_bytes(b"")
    assert Proc(tmp_path).process(10) is None
    assert list(stats(tmp_path)) == []


def test_the_stat_line_is_read_by_its_last_parenthesis() -> None:
    found = parse_stat(b"5 (a) (b) S 1 2 3 34816 -1 0 " + b"0 " * 12 + b"99 0 0 0")
    assert (found.comm, found.ppid, found.pgid, found.sid) == ("a) (b", 1, 2, 3)
    assert (found.tty, found.start_time) == (34816, 99)


def test_files_that_may_not_be_read_are_not_called_absent() -> None:
    # of pid 1, or of this process for a child that gave up being root
    target = 1 if os.getuid() else os.getpid()
    child = os.fork()
    if child == 0:
        with suppress(PermissionError):
            os.setuid(65534)
        try:
            Proc().devices([target])
        except NotPrivileged:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_a_process_that_only_maps_libcuda_is_a_candidate(tmp_path: Path) -> None:
    """One that was suspended holds no device, and the driver must still be asked about it."""
    library = tmp_path / "libcuda.so.580.159.04"
    library.write_bytes(bytes(4096))
    me = os.getpid()
    assert Proc().cuda_candidates([me]) == ()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert Proc().cuda_candidates([me]) == (me,)
