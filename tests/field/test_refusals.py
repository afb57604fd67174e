"""D, P, O: what a dump refuses, it refuses beforehand, and what only looks like trouble is none."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.field.counting import Counter, run
from tests.root.harness import criu_dumps, exists
from tests.targets import facts, findings, target

if TYPE_CHECKING:
    from pathlib import Path

    from tests.root.harness import Answer, Field

pytestmark = pytest.mark.root

LIBC = "import ctypes; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p\n"
GUARD = LIBC + (
    "p = c.mmap(None, 1 << 20, 3, 34, -1, 0)\n"
    "assert c.madvise(ctypes.c_void_p(p), 4096, 102) == 0  # MADV_GUARD_INSTALL\n"
)
RING = "import ctypes; ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))\n"
LOCK = "import fcntl; held = open('locked', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n"
GHOST = (
    "import os; g = open('ghost', 'wb'); g.write(bytes(3 << 20)); g.flush(); os.unlink('ghost')\n"
)


def blockers(answer: Answer) -> dict[str, dict[str, Any]]:
    """Return what stops a dump, by id."""
    found = answer.json["error"]["findings"]
    return {one["id"]: one for one in found if one["severity"] == "blocker"}


def test_all_blockers_of_a_stranger_on_an_unfit_host(place: Field) -> None:
    """O01, O02, D01, D03, D07, D09, D27: no root, an old CRIU, a hopeless job, in one plan."""
    old = place.folder / "old-criu"
    old.write_text("#!/bin/sh\necho 'Version: 3.16'\n")
    old.chmod(0o755)
    ours, theirs = socket.socketpair()
    tcp = "import socket; t = socket.create_connection(('127.0.0.1', {}))\n"
    with ours, socket.create_server(("127.0.0.1", 0)) as server:
        code = RING + LOCK + GHOST + tcp.format(server.getsockname()[1])
        with target(place.folder, code, pass_fds=(theirs.fileno(),)) as pid:
            theirs.close()
            options = ("--ghost-limit", "1M", "-o", "/nowhere/image")
            answer = place.gpuckpt("plan", pid, *options, GPUCKPT_CRIU=str(old))
            found = blockers(answer)
            assert set(found) == {
                "io-uring",
                "deleted-file-large",
                "tcp-connected",
                "unix-peer-outside",
                "criu-too-old",
                "not-writable",
            }
            assert str(os.getpid()) in found["unix-peer-outside"]["reason"]
            assert all(one["remedy"] for one in found.values())
            dump = place.gpuckpt("dump", pid, *options, GPUCKPT_CRIU=str(old))
            assert (set(blockers(dump)), dump.code) == (set(found), answer.code)
            done = run(powerless(place.command("plan", pid, *options, "--json")))
            (found,) = (
                one
                for one in json.loads(done.stdout)["error"]["findings"]
                if one["id"] == "not-privileged" and "CAP_SYS_ADMIN" in str(one)
            )
            assert "sudo" in found["remedy"] or "root" in found["remedy"]
    assert not exists(pid)


def powerless(command: list[str]) -> list[str]:
    """Return a command line that gives up every capability first."""
    return ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *command]


def test_guard_pages_of_this_kernel_are_seen(tmp_path: Path) -> None:
    """D25: where the kernel can tell of them CRIU saves them; the doctor pairs both."""
    with target(tmp_path, GUARD) as pid:
        known = facts(pid)
        assert criu_dumps(known, tmp_path / "images")


TRAITS = {
    "memfd-huge": "import os; f = os.memfd_create('m', os.MFD_HUGETLB)",
    "pipe-packets": "import os; r, w = os.pipe2(os.O_DIRECT); os.write(w, b'a')",
}


@pytest.mark.parametrize("name", TRAITS)
def test_ordinary_things_opened_in_a_way_of_their_own(tmp_path: Path, name: str) -> None:
    """D14: CRIU knows memfds and pipes, but not these."""
    with target(tmp_path, TRAITS[name]) as pid:
        assert [one.id for one in findings(pid) if one.blocks] == [name]
        assert not criu_dumps(facts(pid), tmp_path / "images")


def test_errors_of_a_run_that_succeeded(place: Field) -> None:
    """D28: CRIU complains about a limit it may not raise, and the dump is a good one."""
    job = Counter(place)
    limited = ["prlimit", "--nofile=512:512", "setpriv", "--bounding-set", "-sys_resource"]
    limited += ["--inh-caps", "-sys_resource"]
    assert criu_dumps(facts(job.pid), place.folder / "bare", *limited)
    assert "RLIMIT_NOFILE" in (place.folder / "bare" / "log").read_text(errors="replace")
    done = run([*limited, *place.command("dump", job.pid, "-o", job.image, "--leave-running")])
    assert done.returncode == 0, done.stderr
    assert "error:" not in done.stderr
    job.goes_on()


@pytest.mark.parametrize("direct", [True, False])
def test_a_wrapper_around_criu(place: Field, *, direct: bool) -> None:
    """D30: one that becomes CRIU is CRIU; one that stays in between is told, and harms nobody."""
    job = Counter(place)
    wrapper = place.folder / "criu"
    real = os.environ["GPUCKPT_CRIU"]
    between = f'{real} "$@"; code=$?; [ "$code $1" = "0 dump" ] && code=5; exit $code'
    line = f'exec {real} "$@"' if direct else between
    wrapper.write_text(f"#!/bin/sh\n{line}\n")
    wrapper.chmod(0o755)
    named = {"GPUCKPT_CRIU": str(wrapper)}
    if direct:
        job.dump(**named)
        job.restore(**named)
        return
    answer = place.gpuckpt("dump", job.pid, "-o", job.image, **named)
    assert (answer.code, answer.error) == (6, "dump_failed"), answer.stdout + answer.stderr
    assert "exec" in answer.json["error"]["hint"]
    assert not job.image.exists()
    job.goes_on()


def test_memory_is_for_its_owner_only(place: Field) -> None:
    """P06: no file of an image is readable by others; one that others could write is refused."""
    job = Counter(place)
    old = os.umask(0)
    try:
        job.dump()
    finally:
        os.umask(old)
    everything = [job.image, *job.image.rglob("*")]
    assert not [path for path in everything if path.stat().st_mode & 0o077]
    part = next(path for path in everything if path.name.startswith("core-"))
    for path, mode in ((part, 0o666), (job.image, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        answer = place.gpuckpt("restore", job.image)
        assert (answer.code, answer.error) == (7, "image_untrusted"), answer.json
        assert not exists(job.pid)
        path.chmod(before)
    os.chown(part, 65534, 65534)
    assert place.gpuckpt("restore", job.image).code == 7
