"""From one host to another that is not quite like it: what comes back, and what is left alone.

One job is dumped once; hosts are cheap, each scenario changes the other one and puts it back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.root.harness import JOBS, PATIENCE, lines_of, wait_for
from tests.root.hosts import Host, carry, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

PORT = 8123
FIRST_PID = 20_000  # far from all that the hosts start themselves
IMAGE = "/ckpt/image"
INPUT = bytes(range(256)) * 64
# tells its pid when it listens
LISTENER = """
import os, socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print(os.getpid(), flush=True)
    time.sleep(999)
"""
JOB = "/srv/job"
LOG = f"{JOB}/log"
TREE = (JOB, "/srv/lib", "/srv/venv", "/srv/data")


def build_id(data: bytes) -> int:
    """Return where the build-id of an ELF file begins."""
    return data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0") + 16


def furnish(host: Host) -> None:
    """Put the job's world there: a virtual environment, a library of its own, an input."""
    job, lib, venv, data = (host.path(one) for one in TREE)
    for folder in (job, lib, venv / "bin", data):
        folder.mkdir(parents=True)
    (data / "input").write_bytes(INPUT)
    (job / "log").touch(0o640)
    (job / "mover.py").write_bytes((JOBS / "mover.py").read_bytes())
    libz = next(Path("/usr/lib").glob("*/libz.so.1"))
    (lib / "libown.so").write_bytes(libz.read_bytes())
    python = Path(sys.executable).resolve()
    (venv / "bin" / "python").symlink_to(python)
    (venv / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    package = next(iter(venv.glob("lib")), venv / "lib") / "python3" / "site-packages"
    (package / "thing-1.0.dist-info").mkdir(parents=True)


def start(host: Host) -> int:
    """Start the job in a session of its own, as a child of the host's init; return its pid."""
    job = f"/srv/venv/bin/python mover.py {JOB} /srv/lib/libown.so /srv/data/input {PORT}"
    job += " </dev/null >out 2>&1"
    script = f"echo {FIRST_PID} >/proc/sys/kernel/ns_last_pid && cd {JOB} && setsid --fork {job}"
    host.run("sh", "-c", script)
    told = host.path(f"{JOB}/pid")
    wait_for("the job counts", told.exists)
    return int(told.read_text())


def copy(image: Path, to: Path) -> None:
    """Copy an image as an operator would who sees both hosts' disks."""
    to.parent.mkdir()
    words = [sys.executable, "-m", "gpuckpt", "copy", image, to]
    subprocess.run(words, check=True, timeout=PATIENCE, capture_output=True)


class Move:
    """A job that was dumped on one host, its image, and another host with a copy of its world."""

    def __init__(self, folder: Path) -> None:
        self.old = Host.start("node-a", folder / "a")
        self.hosts = [self.old]
        furnish(self.old)
        self.old.path("/ckpt").mkdir()
        self.pid = start(self.old)
        self.dumped = self.old.gpuckpt("dump", self.pid, "-o", IMAGE).result
        self.log = self.old.path(LOG).read_bytes()
        self.last = self.log.count(b"\n")
        self.new = Host.start("node-b", folder / "b")
        self.hosts.append(self.new)
        carry(self.old, self.new, TREE)
        copy(self.old.path(IMAGE), self.new.path(IMAGE))
        # systemd would name root whatever the file says
        self.new.path("/etc/nsswitch.conf").write_text("passwd: files\ngroup: files\n")

    def refused(self, *options: object, by: str) -> dict[str, Any]:
        """See a restore refused for a reason, with nothing changed on the host; return why."""
        before = self.new.listing()
        answer = self.new.gpuckpt("restore", IMAGE, *options)
        assert answer.error == "host_mismatch"
        assert answer.code == 8
        assert not self.new.alive(self.pid)
        assert self.new.listing() == before
        found: list[dict[str, Any]] = answer.json["error"]["findings"]
        assert by in {one["id"] for one in found}, found
        return next(one for one in found if one["id"] == by)

    def returns(self, *options: object, then: str = LOG) -> dict[str, Any]:
        """See the job restored and counting on, end it, and return the result."""
        result = self.new.gpuckpt("restore", IMAGE, "--settle", "0.1", *options).result
        assert result["root_pid"] == self.pid
        log = self.new.path(then)
        wait_for("it counts on", lambda: len(lines_of(log)) > self.last + 3)
        numbers = [int(line.split()[0]) for line in lines_of(log)]
        assert numbers[self.last] == self.last + 1
        assert numbers == list(range(1, len(numbers) + 1))
        self.new.end(self.pid)
        remove(log)
        carry(self.old, self.new, [LOG] if then == LOG else [])
        return result


@pytest.fixture(scope="module")
def move(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Move]:
    """Dump a job on a host, and give another host with a copy of it."""
    folder = tmp_path_factory.mktemp("hosts")
    found = Move.__new__(Move)
    found.hosts = []
    try:
        found.__init__(folder)  # type: ignore[misc]
        yield found
    finally:
        for host in found.hosts:
            host.stop()


@contextmanager
def without(host: Host, path: str) -> Iterator[None]:
    """Move something out of the way for a while."""
    there, aside = host.path(path), host.path("/aside")
    there.rename(aside)
    try:
        yield
    finally:
        if there.exists():
            remove(there)
        aside.rename(there)


@contextmanager
def changed(host: Host, path: str, data: bytes) -> Iterator[None]:
    """Give a file other contents for a while; its times are of now."""
    there = host.path(path)
    before, known = there.read_bytes(), there.stat()
    there.write_bytes(data)
    try:
        yield
    finally:
        there.write_bytes(before)
        os.utime(there, ns=(known.st_atime_ns, known.st_mtime_ns))


def test_a_host_of_another_name(move: Move) -> None:
    """It counts on, and is told that it is elsewhere; the evidence has both hosts."""
    result = move.returns()
    assert result["identity"]["hostname"] == {"old": "node-a", "new": "node-b"}
    answer = move.new.gpuckpt("evidence", IMAGE, "--restore", result["kept"], "-o", "/ckpt/e.json")
    found = answer.result["evidence"]
    assert found["before"]["hostname"] == "node-a"
    last = found["attempts"][-1]
    assert (last["outcome"], last["after"]["hostname"]) == ("done", "node-b")
    assert {"what": "hostname", "before": "node-a", "after": "node-b"} in last["changes"]
    assert move.new.gpuckpt("evidence", "--check", "/ckpt/e.json", IMAGE).result["holds"]


def facts(move: Move) -> None:
    """Have the new host say of itself what it is, and bring that to the old one."""
    told = move.new.gpuckpt("doctor", "--facts", "--for", IMAGE).stdout
    move.old.path("/ckpt/facts.json").write_text(told)


def test_the_old_host_knows_what_the_new_one_would_say(move: Move) -> None:
    """Files, packages and users too, if it was asked for the image; pids and ports are named."""
    judge = ("compat", IMAGE, "--host-facts", "/ckpt/facts.json")
    larger = changed(move.new, "/srv/data/input", INPUT * 2)
    with without(move.new, "/srv/venv"), larger:
        here = move.new.gpuckpt("plan", IMAGE).json["result"]["findings"]
        facts(move)
    answer = move.old.gpuckpt(*judge)
    (there,) = answer.json["result"]["fits"]
    assert (answer.code, there["host"], there["verdict"]) == (8, "node-b", "no")
    assert there["findings"] == [one for one in here if one["id"] != "restored-before"]
    assert {"gate-python-prefix", "gate-file-size"} <= {one["id"] for one in here}
    assert {"pids", "ports", "earlier restores"} <= set(there["not_judged"])
    facts(move)
    assert move.old.gpuckpt(*judge).result["best"] == ["node-b"]
    remove(move.old.path("/ckpt/facts.json"))


def test_a_port_that_is_taken(move: Move) -> None:
    command = move.new.command(sys.executable, "-c", LISTENER, PORT)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        pid = int(other.stdout.readline())
        try:
            found = move.refused(by="port-taken")
        finally:
            move.new.end(pid)
    assert (found["object"], found["pid"]) == (f"tcp 127.0.0.1:{PORT}", pid)


def test_a_library_of_another_build(move: Move) -> None:
    path = "/srv/lib/libown.so"
    data = bytearray(move.new.path(path).read_bytes())
    data[build_id(bytes(data))] ^= 0xFF
    with changed(move.new, path, bytes(data)):
        found = move.refused(by="gate-file-build-id")
    assert found["object"] == path


def test_a_virtual_environment_that_is_missing(move: Move) -> None:
    with without(move.new, "/srv/venv"):
        found = move.refused(by="gate-python-prefix")
    assert found["object"] == "/srv/venv"


def test_a_user_that_is_somebody_else(move: Move) -> None:
    """Under his number the job would have his files; a number without a name is only told of."""
    known = move.new.path("/etc/passwd").read_bytes()
    with changed(move.new, "/etc/passwd", known.replace(b"root:", b"admin:", 1)):
        found = move.refused(by="gate-user")
    assert (found["object"], "admin" in found["reason"]) == ("user 0", True)
    nobody = b"".join(one for one in known.splitlines(True) if b":0:0:" not in one)
    with changed(move.new, "/etc/passwd", nobody):
        result = move.returns()
    assert "user-unknown" in {one["id"] for one in result["findings"]}


def test_a_log_that_is_missing(move: Move) -> None:
    """The image's is put there as it was, and the job goes on in it."""
    move.new.path(LOG).unlink()
    move.returns()
    move.new.path(LOG).unlink()
    before = move.new.listing()
    failed = move.new.gpuckpt("restore", IMAGE, "--files", "none")
    assert failed.code == 2
    assert move.new.listing() == before
    carry(move.old, move.new, [LOG])


def test_a_log_that_has_grown(move: Move) -> None:
    """It is cut to what the job knows, and what came later is kept."""
    log = move.new.path(LOG)
    with log.open("ab") as file:
        file.write(b"later\n")
    result = move.returns()
    ((path, aside),) = result["aside"].items()
    assert path == LOG
    assert result["account"]["aside"] == {path: aside}
    assert move.new.path(aside).read_bytes() == b"later\n"
    remove(move.new.path(aside))


def test_a_log_that_is_another(move: Move) -> None:
    """Of the same size: nobody knows whose it is, and the user has to say what becomes of it."""
    other = move.log[::-1]
    with changed(move.new, LOG, other):
        found = move.refused(by="file-changed")
        assert found["object"] == LOG
        result = move.returns("--files", "replace")
        assert move.new.path(result["aside"][LOG]).read_bytes() == other
        remove(move.new.path(result["aside"][LOG]))


def test_an_input_of_the_same_size(move: Move) -> None:
    path = "/srv/data/input"
    with changed(move.new, path, INPUT[::-1]):
        found = move.refused(by="gate-file-content")
    assert found["object"] == path


def test_a_path_that_is_another_one(move: Move) -> None:
    """Without a word it is refused; with one the job works at the new place."""
    move.new.path("/data").mkdir()
    move.new.path(JOB).rename(move.new.path("/data/job"))
    try:
        move.refused("--map-path", f"{JOB}=/nowhere/job", by="carried-folder")
        result = move.returns("--map-path", f"{JOB}=/data/job", then="/data/job/log")
        assert "paths-remembered" in {one["id"] for one in result["findings"]}
        assert result["account"]["path_map"] == {JOB: "/data/job"}
        assert not move.new.path(JOB).exists()
    finally:
        remove(move.new.path("/data/job"))
        carry(move.old, move.new, [JOB])


def test_a_restore_that_fails_half_way(move: Move) -> None:
    """The log was cut and another file made by then: all of it is taken back, times too."""
    pages, out = f"{IMAGE}/criu/pages-1.img.zst", move.new.path(f"{JOB}/out")
    data = bytearray(move.new.path(pages).read_bytes())
    data[len(data) // 2] ^= 1
    out.unlink()
    grown = changed(move.new, LOG, move.log + b"later\n")
    with grown, changed(move.new, pages, bytes(data)):
        before = files(move.new)
        answer = move.new.gpuckpt("restore", IMAGE)
        assert (answer.code, answer.error) == (7, "image_damaged")
        assert "criu: failed" in answer.stderr
        assert not move.new.alive(move.pid)
        assert files(move.new) == before
    carry(move.old, move.new, [f"{JOB}/out"])


def files(host: Host) -> dict[str, tuple[object, ...]]:
    """Return what there is but for folders: their times tell that something came and went."""
    return {
        path: seen for path, seen in host.listing().items() if not host.path(f"/{path}").is_dir()
    }


def test_a_cold_start_where_the_image_does_not_fit(move: Move) -> None:
    """Rather from the beginning than wrong; and no evidence calls it a restore."""
    path, log = "/srv/lib/libown.so", move.new.path(LOG)
    data = bytearray(move.new.path(path).read_bytes())
    data[build_id(bytes(data))] ^= 0xFF
    with changed(move.new, path, bytes(data)):
        options = ("--settle", "0.2", "--else-start")
        result = move.new.gpuckpt("restore", IMAGE, *options).result
        try:
            assert (result["cold"], result["why"]["name"]) == (True, "host_mismatch")
            assert result["started"]["cwd"] == JOB
            wait_for("it counts from 1", lambda: lines_of(log)[move.last :][:1])
            assert lines_of(log)[move.last].split()[0] == "1"
        finally:
            move.new.end(result["root_pid"])
    remove(log)
    carry(move.old, move.new, [LOG])
    answer = move.new.gpuckpt("evidence", IMAGE, "-o", "/ckpt/cold.json")
    one, other = answer.result["evidence"]["attempts"][-2:]
    assert (one["operation"], one["outcome"]) == ("restore", "host_mismatch")
    assert (other["id"], other["outcome"]) == ("cold-start-1", "done")
