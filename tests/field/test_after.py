"""S, C: a restore that CRIU calls a success, and that is none, or only half of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.flow.returning.proof import Proof
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.image.store import Image
from gpuckpt.tools.proc import Proc
from tests.fakes.host import FakeHost
from tests.root.harness import exists, lines_of, wait_for

if TYPE_CHECKING:
    from tests.root.harness import Answer, Field

pytestmark = pytest.mark.root

SPEAKER = Path(__file__).parent / "jobs" / "speaker.py"
# a supervisor of the simplest kind; it lets one death pass as such
LOOP = 'for time in 1 2; do setsid -w "$@" </dev/null; done; exec sleep 600'


def ids(answer: Answer) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in answer.result["findings"]}


def end(pid: int) -> None:
    os.kill(pid, 9)
    wait_for(f"pid {pid} is gone", lambda: not exists(pid))


@pytest.fixture
def spoken(place: Field) -> tuple[int, int]:
    """Dump a job whose supervisor starts another and whose output went to us; give both pids."""
    reader, writer = os.pipe()
    threading.Thread(target=lambda: os.read(reader, 1 << 16), daemon=True).start()
    command = [sys.executable, "-S", str(SPEAKER), str(place.folder)]
    supervisor = subprocess.Popen(
        ["/bin/sh", "-c", LOOP, "sh", *command], stdout=writer, start_new_session=True
    )
    place.children.append(supervisor)
    os.close(writer)
    pids = place.folder / "pids"
    wait_for("the job runs", lambda: lines_of(pids))
    pid = int(lines_of(pids)[0])
    place.restored.append(pid)
    ignore = [word for id_ in ("pipe-outside", "supervised") for word in ("--ignore", id_)]
    place.gpuckpt("dump", pid, "-o", place.folder / "image", *ignore).result  # noqa: B018
    wait_for("the supervisor has started another", lambda: len(lines_of(pids)) > 1)
    copy = int(lines_of(pids)[1])
    place.restored.append(copy)
    os.close(reader)
    wait_for("the first is gone", lambda: not exists(pid))
    return pid, copy


def test_what_a_restore_brings_back_and_what_not(place: Field, spoken: tuple[int, int]) -> None:
    """S03, S08, S09, C01: a broken pipe, a second copy, a port that is silent, a death."""
    pid, copy = spoken
    image = place.folder / "image"
    planned = ids(place.gpuckpt("plan", image))
    assert planned["second-copy"]["pid"] == copy
    assert "sh -c" in planned["second-copy"]["reason"]
    answer = place.gpuckpt("restore", image, "--settle", "0.3")
    found = ids(answer)
    assert (found["second-copy"]["pid"], found["pipe-broken"]["pid"]) == (copy, pid)
    assert "stdout" in found["pipe-broken"]["object"]
    assert answer.result["progress"] == "ran"
    assert not {"clock-back", "no-progress", "child-ended"} & found.keys()
    again = place.gpuckpt("restore", image)
    reasons = {one["id"]: one["reason"] for one in again.json["error"]["findings"]}
    assert "restored here at" in reasons["job-runs"]
    assert "pid-taken" not in reasons
    end(copy)

    (place.folder / "close").touch()
    end(pid)
    silent = place.gpuckpt("restore", image, "--settle", "0.5")
    assert (silent.code, silent.error) == (11, "verification_failed")
    assert [one["id"] for one in silent.json["error"]["findings"]] == ["port-silent"]
    assert exists(pid), "it is kept, as was asked"

    (place.folder / "print").touch()
    wait_for("it dies of its output", lambda: not exists(pid))
    dead = place.gpuckpt("restore", image, "--settle", "1")
    assert (dead.code, dead.error) == (11, "verification_failed")
    assert "was a pipe to" in dead.json["error"]["message"]


TALKER = """
import socket, sys, time
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while True: time.sleep(0.05)
"""


def test_a_connection_that_its_peer_gave_up(place: Field) -> None:
    """S12: kept as long as the peer keeps it; a reset meanwhile is seen in the look afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        job = place.start([sys.executable, "-S", "-c", TALKER, str(port)])
        peer = server.accept()[0]
    with peer:
        image = place.dump(job, "--tcp", "established")
        planned = ids(place.gpuckpt("plan", image))
        assert planned["tcp-kept"]["object"] == f"tcp 127.0.0.1:{port}"
        assert "connection-lost" not in ids(place.gpuckpt("restore", image, "--settle", "0.2"))
        end(job.pid)
    lost = ids(place.gpuckpt("restore", image, "--settle", "0.5"))
    assert lost["connection-lost"]["object"] == f"tcp 127.0.0.1:{port}"
    end(job.pid)


def test_a_fresh_start_is_no_restore(place: Field) -> None:
    """S13: the same program, command line and pid prove nothing; the memory's layout does."""
    command = [sys.executable, "-S", str(SPEAKER), str(place.folder)]
    job = place.start(command)
    wait_for("the job runs", lambda: lines_of(place.folder / "pids"))
    image = place.dump(job)
    fresh = place.start(command)
    wait_for("a fresh one runs", lambda: len(lines_of(place.folder / "pids")) > 1)
    with Image.open(image) as opened:
        manifest = opened.manifest
    (record,) = manifest.tree
    impostor = msgspec.structs.replace(record, pid=fresh.pid, threads=(fresh.pid,))
    told = msgspec.structs.replace(manifest, root_pid=fresh.pid, tree=(impostor,))
    tools: Any = replace(FakeHost().toolbox(place.folder), proc=Proc())
    assert [one.id for one in Proof(tools, told, Interrupts()).exact()] == ["process-memory"]
    clock = Proc().surroundings(fresh.pid).clock
    assert abs(clock - time.monotonic()) < 60
    assert json.loads((image / "manifest.json").read_text())["tree"][0]["clock"] <= clock
