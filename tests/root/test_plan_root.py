"""What the plan says of real trees, and that CRIU says the same."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.tools.cgroups import Cgroups
from gpuckpt.tools.proc import Proc
from tests.root.harness import criu_dumps
from tests.targets import facts, findings, target, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

UNSHARE = "import ctypes, os\nif os.fork() == 0:\n ctypes.CDLL(None).unshare({flag})\n"


RING = "import ctypes; ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))"
SYSV = """
import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p
i = c.shmget(0, 4096, 0o1600); c.shmat(i, None, 0); c.shmctl(i, 0, None)
"""
TCP = """
import socket; s = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(s.getsockname())"""
CASES = {
    "plain": ("", set()),
    "threads": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        set(),
    ),
    "lock": ("import fcntl; f = open('x', 'w'); fcntl.flock(f, fcntl.LOCK_EX)", set()),
    "linked": ("import os; f = open('x', 'w'); os.link('x', 'y'); os.unlink('x')", set()),
    "ghost": ("import os; f = open('x', 'w'); f.write('x'); f.flush(); os.unlink('x')", set()),
    "pty": ("import os; a = os.openpty()", set()),
    "zombie": ("import os\nif os.fork() == 0: os._exit(0)", set()),
    "io_uring": (RING, {"io-uring"}),
    "sysv": (SYSV, {"sysv-shm"}),
    "tcp": (f"{TCP}; d, _ = s.accept()", set()),
    "tcp nobody accepts": (TCP, {"tcp-waiting"}),
    "big ghost": (
        "import os; f = open('x', 'w'); f.write('x' * 3000000); f.flush(); os.unlink('x')",
        {"deleted-file-large"},
    ),
    "uts": (UNSHARE.format(flag=0x04000000), {"namespace-uts"}),
    "ipc": (UNSHARE.format(flag=0x08000000), {"namespace-ipc"}),
    "cgroup": (UNSHARE.format(flag=0x02000000), {"namespace-cgroup"}),
}


@pytest.mark.parametrize("case", CASES)
def test_criu_agrees(tmp_path: Path, case: str) -> None:
    code, expected = CASES[case]
    with target(tmp_path, code) as pid:
        if "fork" in code:
            wait_until(lambda: len(Proc().tree(pid).pids) == 2)
        wait_until(lambda: blockers(pid) == expected)
        assert criu_dumps(facts(pid), tmp_path / "images") == (not expected)


def blockers(pid: int) -> set[str]:
    # 1 MiB: the limit CRIU has when it is not told another
    return {one.id for one in findings(pid, ghost_limit=1 << 20) if one.blocks}


@pytest.mark.parametrize(("option", "kind"), [("-m", "mnt"), ("-n", "net"), ("-U", "user")])
def test_namespaces_of_its_own(tmp_path: Path, option: str, kind: str) -> None:
    with target(tmp_path, "", "unshare", option) as pid:
        assert f"namespace-{kind}" in blockers(pid)


def test_a_whole_tree_with_its_own_host_name_is_dumped(tmp_path: Path) -> None:
    with target(tmp_path, "", "unshare", "-u", "-i", "-C") as pid:
        assert findings(pid) == ()
        assert criu_dumps(facts(pid), tmp_path / "images")


def test_a_nested_pid_namespace(tmp_path: Path) -> None:
    with target(tmp_path, "", "unshare", "-p", "--fork") as pid:
        inner = Proc().tree(pid).pids[1]
        (found,) = findings(pid)
        assert (found.id, found.pid) == ("namespace-pid", inner)
        assert not criu_dumps(facts(pid), tmp_path / "images")


TRACE = """
import ctypes
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
assert ptrace(0x4206, {thread}, 0, 0) == 0  # PTRACE_SEIZE
"""


def test_threads_are_checked_for_tracers(tmp_path: Path) -> None:
    code = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    with target(tmp_path, code) as pid:
        thread = facts(pid).tree.root.threads[1]
        with target(tmp_path, TRACE.format(thread=thread)) as tracer:
            (found,) = findings(pid)
            assert (found.id, found.object) == ("tracer", f"thread {thread}")
            assert f"Process {tracer} " in found.reason
            assert not criu_dumps(facts(pid), tmp_path / "images")
        wait_until(lambda: findings(pid) == ())


@contextmanager
def cgroup(kind: str) -> Iterator[Path]:
    """Make a control group of version 1 or 2 that can be frozen, for a while."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point, _, options = line.split()[4], *line.partition(" - ")[1:]
        wanted = options.startswith("cgroup2 ") if kind == "v2" else "freezer" in options.split(",")
        if wanted:
            folder = Path(point) / f"gpuckpt-test-{os.getpid()}"
            break
    else:
        pytest.skip(f"no {kind} freezer is mounted here")
    try:
        folder.mkdir()
    except OSError as why:
        pytest.skip(f"control groups cannot be made here: {why}")
    try:
        yield folder
    finally:
        thaw(folder)
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        folder.rmdir()


def freeze(folder: Path) -> None:
    one = folder / "freezer.state"
    if one.exists():
        one.write_text("FROZEN")
    else:
        (folder / "cgroup.freeze").write_text("1")


def thaw(folder: Path) -> None:
    one = folder / "freezer.state"
    if one.exists():
        one.write_text("THAWED")
    else:
        (folder / "cgroup.freeze").write_text("0")


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_a_frozen_control_group(tmp_path: Path, kind: str) -> None:
    with cgroup(kind) as folder, target(tmp_path, "") as pid:
        (folder / "cgroup.procs").write_text(str(pid))
        assert findings(pid) == ()
        assert Cgroups().frozen(pid) == ""
        freeze(folder)
        wait_until(
            lambda: [(one.id, one.object) for one in findings(pid)] == [("frozen", str(folder))]
        )
        thaw(folder)
        wait_until(lambda: findings(pid) == ())


def test_a_deleted_file_that_is_only_mapped(tmp_path: Path) -> None:
    code = (
        "import mmap, os\n"
        "f = open('x', 'w+b'); f.write(b'x' * 400000); f.flush()\n"
        "m = mmap.mmap(f.fileno(), 400000); f.close(); os.unlink('x')\n"
        # CPython keeps a descriptor of its own for the mapping
        "for n in range(3, 20):\n"
        " try: os.close(n)\n"
        " except OSError: pass\n"
    )
    with target(tmp_path, code) as pid:
        (found,) = facts(pid).look.deleted
        assert (found.fd, found.path, found.links) == (None, str(tmp_path / "x"), 0)
        assert found.bytes >= 400000


def test_posix_semaphores_need_a_link(tmp_path: Path) -> None:
    name = f"gpuckpt-test-{os.getpid()}"
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None); libc.sem_open.restype = ctypes.c_void_p\n"
        f"assert libc.sem_open(b'/{name}', 0o100, 0o600, 1)\n"
    )
    try:
        with target(tmp_path, code) as pid:
            known = facts(pid)
            assert known.needs.link_remap, known.look.deleted
            assert findings(pid) == ()
            assert criu_dumps(known, tmp_path / "images")
    finally:
        semaphore = Path(f"/dev/shm/sem.{name}")
        for left in Path("/dev/shm").glob("link_remap.*"):
            if left.samefile(semaphore):
                left.unlink()
        semaphore.unlink()


def test_a_device_that_criu_does_not_know(tmp_path: Path) -> None:
    node = tmp_path / "node"
    os.mknod(node, 0o20600, os.makedev(10, 229))  # fuse
    code = f"import os; f = os.open({str(node)!r}, os.O_RDWR)"
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as why:
        pytest.skip(f"no fuse here: {why}")
    with target(tmp_path, code) as pid:
        (found,) = findings(pid)
        assert found.id == "device-node"
        assert "10:229" in found.reason
        assert not criu_dumps(facts(pid), tmp_path / "images")


def test_everything_at_once(tmp_path: Path) -> None:
    ghost = "import os; f = open('x', 'w'); f.write('x' * 3000000); f.flush(); os.unlink('x')"
    code = f"{RING}\n{TCP}\n{ghost}"
    ours, theirs = socket.socketpair()
    with ours, target(tmp_path, code, pass_fds=(theirs.fileno(),)) as pid:
        theirs.close()
        found = judge_dump(facts(pid, free_bytes=0), DumpChoices(ghost_limit=1 << 20))
        assert {one.id for one in found} == {
            "io-uring",
            "tcp-waiting",
            "deleted-file-large",
            "unix-peer-outside",
            "space",
        }
