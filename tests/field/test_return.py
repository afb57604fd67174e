"""R, C: where a job comes back to: whose child, in which group and time, and beside whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.field.counting import Counter, cgroup, counting, inside, run
from tests.root.harness import PATIENCE, exists, lines_of, state_of, wait_for

if TYPE_CHECKING:
    from tests.root.harness import Field

pytestmark = pytest.mark.root

# starts what it is told, and waits for it only when it is told
NEGLECTFUL = """
import pathlib, subprocess, sys, time
pid, go, command = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
pid.with_suffix(".new").write_text(str(child.pid))
pid.with_suffix(".new").rename(pid)
while not go.exists(): time.sleep(0.02)
child.wait()
time.sleep(600)
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_parent_that_does_not_wait_for_its_child(place: Field) -> None:
    """R02: its zombie has the pid; the restore waits, and goes on when the pid is free."""
    log, image, told = place.folder / "log", place.folder / "image", place.folder / "told"
    number, go = place.folder / "pid", place.folder / "go"
    code = [sys.executable, "-S", "-c", NEGLECTFUL, str(number), str(go)]
    parent = place.start([*code, *counting(log)])
    wait_for("it counts", lambda: log.exists() and log.stat().st_size > 10)
    pid = int(number.read_text())
    place.restored.append(pid)
    dumped = place.gpuckpt("dump", pid, "-o", image).result
    assert state_of(pid) == "Z"
    assert [(one["id"], one["pid"]) for one in dumped["findings"]] == [("pid-not-gone", pid)]
    command = place.command("restore", image, "--settle", "0", "--progress=json")
    with told.open("wb") as events:
        restoring = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=events)
    wait_for("it makes room", lambda: '"name": "room"' in told.read_text())
    go.touch()
    assert restoring.wait(PATIENCE) == 0, told.read_text()
    assert parent_of(pid) != parent.pid
    assert state_of(pid) != "Z"


def test_in_the_group_of_the_restore(place: Field) -> None:
    """R17, C02: not in its old group, which may be gone by then, but where the restore runs."""
    with cgroup("") as first:
        job = Counter(place)
        (first / "cgroup.procs").write_text(str(job.pid))
        job.dump()
    with cgroup("") as second:
        command = place.command("restore", job.image, "--settle", "0")
        place.restored.append(job.pid)
        assert run(inside(second, command)).returncode == 0
        assert str(job.pid) in (second / "cgroup.procs").read_text().split()
        assert f"/{second.name}" in Path(f"/proc/{job.pid}/cgroup").read_text()
        job.goes_on()
        job.end()


def test_again_and_again(place: Field) -> None:
    """R19, C03: each time in a time of its own, nobody's child but init's, and nothing is lost."""
    job = Counter(place)
    for _ in range(2):
        job.dump()
        job.restore()
        assert parent_of(job.pid) in {1, *ancestors()}
        job.image = job.image.with_suffix(".again")
    assert not zombies_of(os.getpid())


def ancestors() -> set[int]:
    """Return those above us, one of whom may adopt orphans in place of init."""
    found, pid = set(), os.getppid()
    while pid > 1:
        found.add(pid)
        pid = parent_of(pid)
    return found


def zombies_of(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if exists(pid) and parent_of(pid) == parent and state_of(pid) == "Z":
            found.append(pid)
    return found


def test_several_at_the_same_moment(place: Field) -> None:
    """R21: restores of different jobs do not get into each other's way."""
    jobs = [Counter(place, name) for name in ("one", "two")]
    for job in jobs:
        job.dump()
    command = [place.command("restore", job.image, "--settle", "0") for job in jobs]
    running = [subprocess.Popen(one, stderr=subprocess.DEVNULL) for one in command]
    place.restored += [job.pid for job in jobs]
    assert [one.wait(PATIENCE) for one in running] == [0, 0]
    for job in jobs:
        job.goes_on()


PAIR = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
other, _ = server.accept()
number = 0
while True:
    one.sendall(b"%08d" % number)
    print(int(other.recv(8)), flush=True)
    number += 1
    time.sleep(0.02)
"""


def test_connections_without_a_firewall_tool(place: Field) -> None:
    """D08, D07: both ends are in the tree, CRIU holds them by nftables itself; no byte is lost."""
    job = place.start([sys.executable, "-S", "-c", PAIR])
    log = place.folder / "output"
    wait_for("numbers pass", lambda: len(lines_of(log)) > 3)
    image = place.folder / "image"
    nowhere = {"PATH": "/usr/bin:/bin"}  # iptables and nft are in sbin
    done = place.gpuckpt("dump", job.pid, "-o", image, **nowhere)
    assert done.code == 0, done.json
    wait_for("the pid is free", lambda: not exists(job.pid))
    before = len(lines_of(log))
    place.restored.append(job.pid)
    done = place.gpuckpt("restore", image, "--settle", "0", **nowhere)
    assert done.code == 0, done.json
    wait_for("numbers pass", lambda: len(lines_of(log)) > before + 3)
    lines = lines_of(log)
    assert lines == [str(number) for number in range(len(lines))]
