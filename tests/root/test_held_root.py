"""Locks, deleted files and special memory of real processes, and that CRIU says the same."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from tests.root.harness import Field, criu_dumps, mounted
from tests.targets import facts, findings, target, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root


def test_a_lock_that_somebody_outside_has_too(tmp_path: Path) -> None:
    """As under `flock FILE job`, whose lock the job inherits."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with target(tmp_path, "", pass_fds=(lock.fileno(),)) as pid:
            (found,) = findings(pid)
            assert (found.id, found.blocks) == ("lock-shared", True)
            assert found.object == f"fd {lock.fileno()} {tmp_path / 'lock'}"
            assert f"process {os.getpid()} " in found.reason
            lock.close()
            assert findings(pid) == ()


@pytest.mark.parametrize("call", ["flock(f, 2)", "lockf(f, 2)"])
def test_a_lock_that_somebody_outside_waits_for(tmp_path: Path, call: str) -> None:
    with target(tmp_path, f"import fcntl; f = open('lock', 'w'); fcntl.{call}") as pid:
        assert findings(pid) == ()
        wait = f"import fcntl; f = open({str(tmp_path / 'lock')!r}, 'r+'); fcntl.{call}"
        with subprocess.Popen([sys.executable, "-S", "-c", wait]) as waiter:
            wait_until(lambda: findings(pid))
            (found,) = findings(pid)
            assert (found.id, found.blocks) == ("lock-wanted", True)
            assert f"process {waiter.pid} " in found.reason
            (found,) = findings(pid, ignore=frozenset({"lock-wanted"}))
            assert not found.blocks
            waiter.kill()


LOCKS = """
import fcntl, struct
kept = [open(n, 'w') for n in 'abc']
fcntl.flock(kept[0], fcntl.LOCK_EX)
fcntl.lockf(kept[1], fcntl.LOCK_EX)
fcntl.fcntl(kept[2], 37, struct.pack('hhqqi', 1, 0, 0, 0, 0))  # F_OFD_SETLK
open('d', 'w').close(); kept.append(open('d'))
fcntl.fcntl(kept[3], fcntl.F_SETLEASE, fcntl.F_RDLCK)
"""


def test_all_kinds_of_locks_come_along(tmp_path: Path) -> None:
    with target(tmp_path, LOCKS) as pid:
        known = facts(pid)
        assert {one.kind for one in known.look.locks} == {"flock", "posix", "ofdlck", "lease"}
        assert known.needs.file_locks
        assert findings(pid) == ()
        assert criu_dumps(known, tmp_path / "images")


@pytest.mark.parametrize(("way", "ids"), [("writable", ["memfd-sealed"]), ("readable", [])])
def test_a_memfd_that_is_sealed_and_mapped(tmp_path: Path, way: str, ids: list[str]) -> None:
    code = (
        "import fcntl, mmap, os\n"
        "writable = os.memfd_create('kept', os.MFD_ALLOW_SEALING); os.ftruncate(writable, 4096)\n"
        "fcntl.fcntl(writable, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)\n"
        "readable = os.open(f'/proc/self/fd/{writable}', os.O_RDONLY)\n"
        "try:\n"
        f"    area = mmap.mmap({way}, 4096, mmap.MAP_SHARED, mmap.PROT_READ)\n"
        "except PermissionError:  # before Linux 6.7\n"
        "    open('old', 'w').close()"
    )
    with target(tmp_path, code) as pid:
        if (tmp_path / "old").exists():
            pytest.skip("this kernel does not map what is sealed")
        assert [one.id for one in findings(pid)] == ids


def test_a_link_where_nothing_can_be_written(tmp_path: Path) -> None:
    code = "import os; open('m/x', 'w'); f = open('m/x'); os.link('m/x', 'm/y'); os.unlink('m/x')"
    with mounted(tmp_path / "m") as folder, target(tmp_path, code) as pid:
        assert findings(pid) == ()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        (found,) = findings(pid)
        assert (found.id, found.object) == ("link-refused", f"fd 3 {folder / 'x'}")
        assert not criu_dumps(facts(pid), tmp_path / "images")


def test_a_library_replaced_on_an_overlay(tmp_path: Path) -> None:
    """As in a container: the old file is one of the image, which takes no new names."""
    code = (
        "import mmap, os\n"
        "f = os.open('m/lib', os.O_RDONLY)\n"
        "area = mmap.mmap(f, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ); os.closerange(3, 9)\n"
        "open('new', 'w').close(); open('m/new', 'w').close(); os.rename('m/new', 'm/lib')"
    )
    with mounted(tmp_path / "layers") as layers:
        for name in ("lower", "upper", "work"):
            (layers / name).mkdir()
        (layers / "lower" / "lib").write_bytes(b"x" * 4096)
        below = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
        with mounted(tmp_path / "m", "overlay", below), target(tmp_path, code) as pid:
            found = findings(pid)
            assert [one.id for one in found] == ["link-refused", "library-replaced"]
            assert not criu_dumps(facts(pid), tmp_path / "images")


def test_names_that_are_hard_to_tell(tmp_path: Path) -> None:
    code = (
        "import mmap, os\n"
        "os.mkdir('root'); kept = []\n"
        "for name in (b'two\\nlines', b'no\\xfftext', b'a\\\\b', b'x (deleted)'):\n"
        "    kept.append(os.open(name, os.O_RDWR | os.O_CREAT)); os.write(kept[-1], b'x' * 4096)\n"
        "    kept.append(mmap.mmap(kept[-1], 4096))\n"
        "os.chroot('root'); os.chdir('/')\n"
        "kept.append(open('/inside', 'w'))"
    )
    with target(tmp_path, code) as pid:
        assert findings(pid) == ()
        assert criu_dumps(facts(pid), tmp_path / "images")


REPLACED = """
import mmap, os
with open('lib.so', 'w+b') as f:
    f.write(b'x' * 400000); f.flush()
    area = mmap.mmap(f.fileno(), 400000, mmap.MAP_PRIVATE, mmap.PROT_READ)
open('new', 'w').close(); os.rename('new', 'lib.so')
os.closerange(3, 9)
"""


def test_a_library_replaced_under_the_job(tmp_path: Path) -> None:
    with target(tmp_path, REPLACED) as pid:
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("library-replaced", False)
        assert found.object == str(tmp_path / "lib.so")
        assert criu_dumps(facts(pid), tmp_path / "images")
        small = findings(pid, ghost_limit=1 << 10)
        assert [one.id for one in small] == ["deleted-file-large", "library-replaced"]
        assert "--ghost-limit" in small[1].remedy


@contextmanager
def huge_pages(number: int) -> Iterator[None]:
    """Let the host have so many huge pages for a while."""
    switch = Path("/proc/sys/vm/nr_hugepages")
    before = switch.read_text()
    if before.strip() != "0":
        pytest.skip("somebody uses huge pages here")
    try:
        switch.write_text(str(number))
        if int(switch.read_text()) != number:
            pytest.skip("no memory for huge pages")
    except OSError as why:
        pytest.skip(f"huge pages cannot be had: {why}")
    try:
        yield
    finally:
        switch.write_text(before)


HUGE = """
import ctypes
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, 2 << 20, 3, {flags}, -1, 0); ctypes.memset(at, 7, 2 << 20)
"""


def test_huge_pages(tmp_path: Path) -> None:
    with huge_pages(1), target(tmp_path, HUGE.format(flags=0x40021)) as pid:
        found = findings(pid)
        assert [one.id for one in found] == ["huge-pages-full", "huge-pages"]
        assert found[0].object == "2.0 MiB of huge pages"
        assert not criu_dumps(facts(pid), tmp_path / "full")
        Path("/proc/sys/vm/nr_hugepages").write_text("2")
        assert [one.id for one in findings(pid)] == ["huge-pages"]
        assert criu_dumps(facts(pid), tmp_path / "images")


def test_private_huge_pages_never_come_back_from_a_stream(tmp_path: Path) -> None:
    """CRIU dumps them; what it says of its restore: Can't read pages data (-29)."""
    with huge_pages(2), target(tmp_path, HUGE.format(flags=0x40022)) as pid:
        assert {one.id for one in findings(pid)} == {"huge-pages", "huge-pages-private"}


def test_a_ghost_that_was_left(tmp_path: Path) -> None:
    (tmp_path / "x.cr.1f.ghost").touch()
    (tmp_path / "y.cr.1.ghost").touch()
    with target(tmp_path, "import os; f = open('x', 'w'); os.unlink('x')") as pid:
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("ghost-leftover", False)
        assert found.object == str(tmp_path / "x.cr.1f.ghost")


def test_system_v_memory_in_a_namespace_of_its_own(tmp_path: Path) -> None:
    code = (
        "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\n"
        "i = c.shmget(0, 4096, 0o1600); c.shmat(i, None, 0)"
    )
    with target(tmp_path, code, "unshare", "-i") as pid:
        assert findings(pid) == ()
        assert criu_dumps(facts(pid), tmp_path / "images")


def test_files_in_memory(tmp_path: Path) -> None:
    """What is shared comes along; a program's own files are those of the host."""
    code = (
        "import mmap, os\n"
        "f = open('m/x', 'w+b'); f.write(b'x' * 4096); f.flush()\n"
        "area = mmap.mmap(f.fileno(), 4096); g = open('m/gone', 'w'); os.unlink('m/gone')\n"
        "h = open('m/lib', 'w+b'); h.write(b'x' * 4096); h.flush()\n"
        "import ctypes; libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap(None, 4096, 1, 2, h.fileno(), 0); h.close()\n"
        "s = open('m/temp', 'w+b'); s.write(b'x' * 4096); s.flush(); os.link('m/temp', 'm/sem')\n"
        "os.unlink('m/temp'); sem = mmap.mmap(s.fileno(), 4096); s.close()\n"
        "folder = os.open('m', 0)"
    )
    with mounted(tmp_path / "m") as folder, target(tmp_path, code) as pid:
        seen = facts(pid)
        (found,) = [one for one in judge_dump(seen, DumpChoices()) if one.id == "memory-file"]
        assert (found.object, found.blocks) == (str(folder / "lib"), False)
        assert seen.carried_bytes == 2 * 4096
        assert all("gone" not in one.path for one in seen.look.odd_files)


def test_whose_terminal_it_is(tmp_path: Path) -> None:
    master, slave = os.openpty()
    with target(tmp_path, "", stdin=slave) as pid:
        os.close(slave)
        (found,) = findings(pid)
        assert (found.id, found.blocks) == ("terminal", False)
        assert f"process {os.getpid()} " in found.reason
    os.close(master)


def test_a_lock_that_somebody_takes_meanwhile(place: Field, tmp_path: Path) -> None:
    """CRIU would wait for it until its deadline."""
    with target(tmp_path, "import fcntl; f = open('lock', 'w'); fcntl.flock(f, 2)") as pid:
        image = tmp_path / "image"
        place.gpuckpt("dump", pid, "-o", image).result  # noqa: B018 - fails if it did
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with (tmp_path / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        answer = place.gpuckpt("restore", image)
        assert answer.code == 8, answer.stdout
        (found,) = answer.json["error"]["findings"]
        assert (found["id"], found["pid"]) == ("lock-taken", os.getpid())
    assert place.restore(image) == pid
