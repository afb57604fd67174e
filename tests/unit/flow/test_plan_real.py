"""The fingerprints by which rules know things, taken from real processes of this machine."""

from __future__ import annotations

import os
import pty
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from gpuckpt.flow.sight.facts import DumpNeeds
from gpuckpt.tools.proc import Proc
from tests.targets import facts, findings, target, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def ids(pid: int) -> list[str]:
    return [one.id for one in findings(pid)]


def test_an_ordinary_process_has_no_findings(tmp_path: Path) -> None:
    code = (
        "import os, socket, threading, mmap\n"
        "a, b = socket.socketpair()\nr, w = os.pipe()\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0))\n"
        "m = mmap.mmap(-1, 8192); m[:] = b'x' * 8192\n"
        "f = os.memfd_create('m'); g = os.eventfd(0); n = open('/dev/urandom')\n"
        "o = open('log', 'a')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "if os.fork() == 0: b.close(); os.close(w)\n"
    )
    with target(tmp_path, code) as pid:
        wait_until(lambda: len(Proc().tree(pid).pids) == 2)
        assert findings(pid) == ()
        assert facts(pid).needs == DumpNeeds(
            shell_job=False, file_locks=False, link_remap=False, ghost_bytes=0, largest_ghost=0
        )
        assert facts(pid).image_bytes > 1 << 20


def test_output_into_our_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    with target(tmp_path, "", stdout=write) as pid:
        os.close(write)
        assert os.read(read, 5) == b"ready"
        (found,) = findings(pid)
        assert (found.id, found.pid) == ("pipe-outside", pid)
        assert "fd 1 stdout" in found.object
        assert str(os.getpid()) in found.reason
        # nobody is at the other end any more: nothing is lost at a restore
        os.close(read)
        assert findings(pid) == ()


def test_a_pipe_that_is_somebody_s_output_is_told_as_that(tmp_path: Path) -> None:
    read, write = os.pipe()
    code = f"import os\nif os.fork() == 0: os.dup2({write}, 1)\n"
    with target(tmp_path, code, pass_fds=(write,)) as pid:
        os.close(write)
        wait_until(lambda: len(Proc().tree(pid).pids) == 2)
        wait_until(lambda: "fd 1 stdout" in findings(pid)[0].object)
        (found,) = findings(pid)
        assert found.blocks
        assert found.pid == Proc().tree(pid).pids[1]
        os.close(read)


def test_input_from_our_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    with target(tmp_path, "", stdin=read) as pid:
        os.close(read)
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("pipe-outside", False)
        os.close(write)


@pytest.mark.parametrize(
    "kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM], ids=lambda one: one.name
)
def test_a_socket_pair_with_us(tmp_path: Path, kind: socket.SocketKind) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, target(tmp_path, "", pass_fds=(theirs.fileno(),)) as pid:
        number = theirs.fileno()
        theirs.close()
        (found,) = findings(pid)
        assert (found.id, found.pid) == ("unix-peer-outside", pid)
        assert found.object.startswith(f"fd {number} ")
        assert f"process {os.getpid()} " in found.reason


def test_a_socket_pair_with_the_parent_is_inside_when_the_parent_is(tmp_path: Path) -> None:
    code = (
        "import os, socket\na, b = socket.socketpair()\nif os.fork(): b.close()\nelse: a.close()\n"
    )
    with target(tmp_path, code) as pid:
        wait_until(lambda: len(Proc().tree(pid).pids) == 2)
        assert findings(pid) == ()
        child = Proc().tree(pid).pids[1]
        (found,) = findings(child)
        assert found.id == "unix-peer-outside"
        assert f"process {pid} " in found.reason


def test_a_connection_that_is_not_accepted_yet(tmp_path: Path) -> None:
    """Such a socket has no peer so far; CRIU dumps it and can never restore it."""
    name = str(tmp_path / "busy")
    code = f"import socket; client = socket.socket(socket.AF_UNIX); client.connect({name!r})"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        with target(tmp_path, code) as pid:
            (found,) = findings(pid)
            assert (found.id, found.pid) == ("unix-peer-outside", pid)
            assert name in found.object
            assert f"process {os.getpid()} " in found.reason


def test_a_server_s_name_is_told(tmp_path: Path) -> None:
    name = str(tmp_path / "server")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({name!r})"
        with target(tmp_path, code) as pid:
            connection, _ = server.accept()
            with connection:
                (found,) = findings(pid)
                assert name in found.object


def test_file_locks_are_seen(tmp_path: Path) -> None:
    code = (
        "import fcntl\n"
        "a = open('a', 'w'); fcntl.flock(a, fcntl.LOCK_EX)\n"
        "b = open('b', 'w'); fcntl.lockf(b, fcntl.LOCK_EX)\n"
        "c = open('c', 'w')\n"
    )
    with target(tmp_path, code) as pid:
        known = facts(pid)
        held = {(os.path.basename(one.path), one.kind) for one in known.look.locks}  # noqa: PTH119
        assert held == {("a", "flock"), ("b", "posix")}
        assert known.needs.file_locks
        assert findings(pid) == ()


def test_deleted_files(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "f = open('gone', 'wb'); f.write(b'x' * 300000); f.flush(); os.unlink('gone')\n"
        "g = open('moved', 'wb'); os.link('moved', 'kept'); os.unlink('moved')\n"
        "if os.fork() == 0: pass\n"
    )
    with target(tmp_path, code) as pid:
        wait_until(lambda: len(Proc().tree(pid).pids) == 2)
        needs = facts(pid).needs
        assert needs.ghost_bytes == needs.largest_ghost >= 300000
        assert needs.link_remap
        assert findings(pid) == ()
        (found,) = findings(pid, ghost_limit=100000)
        assert (found.id, found.pid) == ("deleted-file-large", pid)
        assert found.object.endswith("gone")


def test_a_tracer(tmp_path: Path) -> None:
    # the child asks to be traced by its parent, which needs no privilege
    code = (
        "import ctypes, os\n"
        "if os.fork() == 0: ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"
        "else: time = __import__('time'); time.sleep(600)\n"
    )
    with target(tmp_path, code) as pid:
        child = Proc().tree(pid).pids[1]
        (found,) = findings(child)
        assert (found.id, found.pid, found.object) == ("tracer", child, f"thread {child}")
        assert f"Process {pid} " in found.reason


def test_a_stopped_process(tmp_path: Path) -> None:
    with target(tmp_path, "") as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: ids(pid) == ["stopped"])
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: ids(pid) == [])


LEADERLESS = (
    "import ctypes, threading\n"
    "def stay():\n"
    " import time; time.sleep(0.1); print('ready', flush=True); time.sleep(600)\n"
    "threading.Thread(target=stay).start()\n"
    "ctypes.CDLL(None).syscall(60, 0)\n"
)


def test_a_process_whose_first_thread_has_ended(tmp_path: Path) -> None:
    with target(tmp_path, LEADERLESS) as pid:
        assert ids(pid) == ["dead-leader"]


def test_io_uring(tmp_path: Path) -> None:
    code = (
        "import ctypes, sys\n"
        "n = ctypes.CDLL(None, use_errno=True).syscall(425, 4, ctypes.create_string_buffer(120))\n"
        "print('ring', n, flush=True)\n"
    )
    with target(tmp_path, code) as pid:
        if "ring -1" in "".join(file.read_text() for file in tmp_path.glob("out-*")):
            pytest.skip("this kernel does not allow io_uring")
        assert ids(pid) == ["io-uring"]


def test_system_v_memory(tmp_path: Path) -> None:
    # IPC_PRIVATE, and marked for removal at once: it goes with the process
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p\n"
        "i = libc.shmget(0, 4096, 0o1600); libc.shmat(i, None, 0); libc.shmctl(i, 0, None)\n"
    )
    with target(tmp_path, code) as pid:
        assert ids(pid) == ["sysv-shm"]


def test_a_terminal_outside(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    with target(tmp_path, "", stdin=slave) as pid:
        os.close(slave)
        (found,) = findings(pid)
        assert (found.id, found.blocks, found.object) == ("terminal", False, f"fd 0 {name}")
        assert facts(pid).needs.shell_job
    os.close(master)


def test_a_controlling_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    code = "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.close(0)"
    with target(tmp_path, code, stdin=slave) as pid:
        (found,) = findings(pid)
        assert found.object == f"controlling terminal {os.ttyname(slave)}"
        os.close(slave)
    os.close(master)


def test_a_terminal_of_the_tree_itself(tmp_path: Path) -> None:
    with target(tmp_path, "import os; m, s = os.openpty()") as pid:
        assert findings(pid) == ()
        assert not facts(pid).needs.shell_job


def test_a_job_of_a_shell(tmp_path: Path) -> None:
    code = "import os\nif os.fork(): time = __import__('time'); time.sleep(600)\n"
    with target(tmp_path, code) as pid:
        child = Proc().tree(pid).pids[1]
        assert facts(child).needs.shell_job
        assert not facts(pid).needs.shell_job


def test_environment_names_are_read_and_values_are_not(tmp_path: Path) -> None:
    secret = {"CUDA_MPS_PIPE_DIRECTORY": "s3cret"}
    with target(tmp_path, "", env=os.environ | secret) as pid:
        (task,) = facts(pid).look.tasks
        assert "CUDA_MPS_PIPE_DIRECTORY" in task.environment
        assert not any("s3cret" in name for name in task.environment)


def test_processes_that_end_while_they_are_looked_at(tmp_path: Path) -> None:
    code = (
        "import os, threading\n"
        "def churn():\n"
        " while 1:\n"
        "  pid = os.fork()\n"
        "  if pid == 0: os._exit(0)\n"
        "  os.waitpid(pid, 0)\n"
        "threading.Thread(target=churn, daemon=True).start()\n"
    )
    with target(tmp_path, code) as pid:
        for _ in range(20):
            assert not [one for one in findings(pid) if one.pid == pid]


def test_big_trees_are_looked_at_in_one_pass(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(60):\n if os.fork() == 0: break\n"
    with target(tmp_path, code) as pid:
        wait_until(lambda: len(Proc().tree(pid).pids) == 61)
        known = facts(pid)
        assert len(known.look.tasks) == 61
        assert findings(pid) == ()


def test_others_processes_are_not_called_harmless(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root to become somebody else")
    with target(tmp_path, "") as pid:
        tree = Proc().tree(pid)
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                (task,) = Proc().look(tree).tasks
                os._exit(0 if not task.readable else 1)
            except BaseException:  # noqa: BLE001 - a forked child must not come back
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_look_at_a_tree_that_is_gone(tmp_path: Path) -> None:
    with target(tmp_path, "") as pid:
        tree = Proc().tree(pid)
    found = Proc().look(tree)
    assert [task.process.pid for task in found.tasks] == [pid]
    assert found.tasks[0].descriptors == ()
