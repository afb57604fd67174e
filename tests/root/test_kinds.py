"""What CRIU has no code for is refused beforehand, and what it has code for is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import Field, criu_dumps, wait_for
from tests.targets import facts, findings, target

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

KIT = """
import ctypes, mmap, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long  # an address that is cut to 32 bits may look like an error
def call(*args):
    found = libc.syscall(*args)
    if found < 0:
        print('cannot', os.strerror(ctypes.get_errno()), flush=True)
        sys.exit(3)
    return found
def watch(path):
    fd = libc.inotify_init()
    assert libc.inotify_add_watch(fd, path, 0x100) > 0, path
"""
COUNTER = "b = ctypes.create_string_buffer(struct.pack('II4Q', 1, 112, 0, 0, 0, 0) + bytes(80))\n"
BPF_MAP = "b = ctypes.create_string_buffer(struct.pack('5I', 2, 4, 4, 1, 0) + bytes(100))\n"
BPF = (
    "i = ctypes.create_string_buffer(bytes.fromhex('b7000000000000009500000000000000'))\n"
    "g = ctypes.create_string_buffer(b'GPL')\n"
    "b = ctypes.create_string_buffer(\n"
    " struct.pack('IIQQ', 1, 2, ctypes.addressof(i), ctypes.addressof(g)) + bytes(100))\n"
)
# what a process does, and the finding that stops its dump
REFUSED = {
    "userfaultfd": ("call(323, 0o2000000)", "descriptor-unsupported"),
    "counter": (COUNTER + "call(298, b, 0, -1, -1, 0)", "descriptor-unsupported"),
    "bpf map": (BPF_MAP + "call(321, 0, b, 72)", "descriptor-unsupported"),
    "bpf program": (BPF + "call(321, 5, b, 72)", "descriptor-unsupported"),
    "mounting": ("call(430, b'tmpfs', 0)", "descriptor-unsupported"),
    "landlock": (
        "b = ctypes.create_string_buffer(struct.pack('Q', 1))\ncall(444, b, 8, 0)",
        "descriptor-unsupported",
    ),
    "secret memory": (
        "f = call(447, 0); os.ftruncate(f, 4096); m = mmap.mmap(f, 4096); os.closerange(3, 9)",
        "mapping-unsupported",
    ),
    "secret memory, not mapped": ("call(447, 0)", "file-unreachable"),
    "message queue": (
        "libc.mq_open(b'/gpuckpt-test', 0o102, 0o600, None); libc.mq_unlink(b'/gpuckpt-test')",
        "file-unreachable",
    ),
    "vsock": ("s = socket.socket(40, 1)", "socket-unsupported"),
    "xdp": ("s = socket.socket(44, 3)", "socket-unsupported"),
    "mptcp": ("s = socket.socket(2, 1, 262)", "socket-unsupported"),
    "pidfd": ("os.pidfd_open(1)", "pidfd-outside"),
    "pidfd of a thread": ("call(434, os.getpid(), 0o200)", "pidfd-thread"),
    "watch on proc": ("watch(b'/proc/self/status')", "watch-lost"),
    "watch on sysfs": ("watch(b'/sys/kernel')", "watch-lost"),
    "tunnel": ("os.open('/dev/net/tun', os.O_RDWR)", "device-node"),
    "folder of a process": ("os.open('/proc/1', 0)", "proc-folder"),
    "serial line": ("os.open('/dev/ttyS0', os.O_RDWR | os.O_NOCTTY)", "device-node"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_as_criu_would(tmp_path: Path, case: str) -> None:
    code, expected = REFUSED[case]
    trial = subprocess.run(
        [sys.executable, "-S", "-c", KIT + code], capture_output=True, text=True, check=False
    )
    if trial.returncode:
        pytest.skip(f"not here: {(trial.stdout + trial.stderr).strip().splitlines()[-1]}")
    with target(tmp_path, KIT + code) as pid:
        assert [one.id for one in findings(pid) if one.blocks] == [expected]
        # such a folder is dumped, and no restore can open it
        assert criu_dumps(facts(pid), tmp_path / "images") == (expected == "proc-folder")


# everything at once that CRIU brings back
FINE = """
import select, signal, time, threading
kept = [os.memfd_create('m'), os.eventfd(3), os.pidfd_open(os.getpid()), os.open('.', os.O_PATH)]
child = os.fork()
if child == 0:
    while True: time.sleep(600)
kept += [os.pidfd_open(child), libc.timerfd_create(1, 0)]
kept.append(libc.signalfd(-1, ctypes.create_string_buffer(128), 0))
epoll = select.epoll(); pipe = os.pipe(); epoll.register(pipe[0])
os.mkdir('watched'); watch(b'watched'); watch(b'/dev/shm')
fan = libc.fanotify_init(0, 0); libc.fanotify_mark(fan, 1, ctypes.c_uint64(8), -100, b'.')
for family, kind, protocol in ((16, 3, 0), (17, 3, 3), (2, 3, 1), (10, 3, 58), (2, 2, 136)):
    kept.append(socket.socket(family, kind, protocol))
kept += [open('/proc/self/status'), open('/proc/meminfo'), os.open('/proc/self/ns/net', 0)]
kept += [open('/dev/kmsg'), open('/dev/full'), open('/dev/urandom'), os.openpty()]
os.mkfifo('p'); kept.append(os.open('p', os.O_RDWR))
os.mkdir('gone'); kept.append(os.open('gone', 0)); os.rmdir('gone')
os.mkdir('here'); os.chdir('here'); os.rmdir('../here')
area = mmap.mmap(-1, 8192); area[:] = b'x' * 8192
call(206, 8, ctypes.byref(ctypes.c_ulong(0)))  # io_setup
call(9, None, 4096, 3, 0x28, -1, 0)  # mmap with MAP_DROPPABLE
"""


def test_what_criu_brings_back_is_let_through(place: Field, tmp_path: Path) -> None:
    with target(tmp_path, KIT + FINE) as pid:
        wait_for("the child", lambda: len(facts(pid).tree.pids) == 2)
        assert [one for one in findings(pid) if one.blocks] == []
        image = tmp_path / "image"
        pids = facts(pid).tree.pids
        place.gpuckpt("dump", pid, "-o", image).result  # noqa: B018 - fails if it did
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert all(reaped(one) for one in pids)
    assert place.restore(image) == pid


def reaped(pid: int) -> bool:
    """Wait until nothing is left of a process but, at most, a zombie of ours."""
    return bool(wait_for("it is gone", lambda: not Path(f"/proc/{pid}/exe").exists(), seconds=20))


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Path]:
    """Give a folder over which a file system will be mounted."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


def test_files_that_cannot_be_reached(tmp_path: Path, hidden: Path) -> None:
    (hidden / "file").write_text("x" * 4096)
    code = KIT + f"f = open({str(hidden / 'file')!r}); kept = mmap.mmap(f.fileno(), 4096, 2, 1)"
    mount = ["mount", "-t", "tmpfs", "gpuckpt-test", str(hidden)]
    with target(tmp_path, code) as pid:
        assert findings(pid) == ()
        subprocess.run(mount, check=True)
        found = findings(pid)
        assert {one.id for one in found} == {"file-unreachable"}
        assert "mounted over" in found[0].reason
        assert not criu_dumps(facts(pid), tmp_path / "hidden-images")
    (hidden / "file").write_text("x" * 4096)
    with target(tmp_path, code) as pid:
        assert findings(pid) == ()
        subprocess.run(["umount", "-l", hidden], check=True)
        (*found,) = findings(pid)
        assert {one.id for one in found} == {"file-unreachable"}
        assert "unmounted" in found[0].reason
        assert not criu_dumps(facts(pid), tmp_path / "lazy-images")


def test_a_namespace_of_somebody_else(tmp_path: Path) -> None:
    with target(tmp_path, "", "unshare", "-n") as other:
        with target(tmp_path, f"import os; os.open('/proc/{other}/ns/net', 0)") as pid:
            (found,) = findings(pid)
            assert found.id == "namespace-open"
            assert not criu_dumps(facts(pid), tmp_path / "images")
        os.kill(other, signal.SIGKILL)


MANY = """
import fcntl
kept = [os.open('/proc/1', 0), os.pidfd_open(1), socket.socket(2, 1, 262)]
call(323, 0o2000000)
watch(b'/proc/self/status')
libc.mq_open(b'/gpuckpt-test', 0o102, 0o600, None); libc.mq_unlink(b'/gpuckpt-test')
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
libc.shmat.restype = ctypes.c_void_p
shared = libc.shmget(0, 4096, 0o1600); libc.shmat(shared, None, 0); libc.shmctl(shared, 0, None)
big = open('big', 'w+b'); big.write(b'x' * 3000000); big.flush(); os.unlink('big')
"""


def test_one_plan_names_everything(place: Field, tmp_path: Path) -> None:
    """Ten blockers at once: each with its process, what is meant, why, and what to do."""
    ours, theirs = socket.socketpair()
    with ours, target(tmp_path, KIT + MANY, pass_fds=(theirs.fileno(),)) as pid:
        theirs.close()
        answer = place.gpuckpt("plan", pid, "--ghost-limit", "1MiB")
        assert (answer.code, answer.error) == (4, "blocked")
        found = [one for one in answer.json["error"]["findings"] if one["severity"] == "blocker"]
        assert {one["id"] for one in found} == {
            "proc-folder",
            "pidfd-outside",
            "socket-unsupported",
            "descriptor-unsupported",
            "watch-lost",
            "file-unreachable",
            "tcp-waiting",
            "sysv-shm",
            "deleted-file-large",
            "unix-peer-outside",
        }
        for one in found:
            assert one["pid"] == pid
            assert one["object"]
            for words in (one["reason"], one["remedy"]):
                assert words[0].isupper() or words.startswith("--"), words
                assert words.endswith("."), words
