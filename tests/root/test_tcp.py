"""Real connections, dumped and restored by real CRIU: inside a tree, and out of it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.tools import filters
from gpuckpt.tools.proc import Proc
from tests.root.harness import Answer, Field, exists, lines_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.root


def tables() -> set[str]:
    return {*filters.tables(filters.CRIU), *filters.tables("gpuckpt-")}


def end_all(pid: int) -> None:
    """End a tree at once, as a power cut would; what it had sent is lost with it."""
    pids = Proc().tree(pid).pids
    for one in pids:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    for one in pids:
        wait_for(f"pid {one} is gone", lambda one=one: not exists(one))


def counts_on(log: Path, more: int = 3) -> None:
    """See that the count goes on, and that every number came back once."""
    before = len(lines_of(log))
    wait_for("numbers pass", lambda: len(lines_of(log)) > before + more)


def restored(place: Field, image: Path) -> tuple[dict[str, Any], str]:
    """Restore at once; return what is told as the result and meanwhile."""
    answer: Answer = place.gpuckpt("restore", image, "--settle", "0", "--progress=plain")
    result = answer.result
    place.restored += result["pids"]
    return result, answer.stderr


def test_a_tree_that_talks_to_itself(place: Field) -> None:
    """D07: no byte that was on its way is lost, on four kinds of connections and a half closed one.

    Twice from one image, and from one made with --leave-running: at once, though the ports of the
    connections that died with the job are in TIME_WAIT, and with nothing of CRIU's to hold them.
    """
    known = tables()
    job = place.job("talkers.py")
    log, image = place.folder / "log", place.folder / "image"
    wait_for("both have filled their queues", (place.folder / "ready").exists)
    planned = place.gpuckpt("plan", job.pid).result
    assert planned["tcp"]["policy"] == "established"
    assert planned["tcp"]["reason"] == (
        "5 TCP connections with both ends in the tree and 1 TCP connection that nobody has the "
        "other end of: kept, as by --tcp established"
    )
    assert not [one for one in planned["findings"] if one["id"].startswith("tcp")]
    place.dump(job)
    assert tables() == known, "CRIU's packet filter is left"
    assert not [one for one in restored(place, image)[0]["findings"] if "tcp" in one["id"]]
    counts_on(log)
    end_all(job.pid)
    result, _ = restored(place, image)
    assert not [one for one in result["findings"] if one["id"].startswith(("tcp", "connection"))]
    counts_on(log)
    (place.folder / "read").touch()
    for side, last in ((0, "True True"), (1, "b'answer'")):
        judged = place.folder / f"read-{side}"
        wait_for("all has been read", judged.exists)
        wait_for("it was judged", judged.read_text)
        assert judged.read_text() == f"True True True {last}"
    counts_on(log)
    again = place.folder / "again"
    assert place.gpuckpt("dump", job.pid, "-o", again, "--leave-running").result["running"]
    counts_on(log)
    end_all(job.pid)
    restored(place, again)
    counts_on(log)
    assert tables() == known
    alone = place.start(["/bin/sleep", "1000"])
    last = place.folder / "last"
    place.gpuckpt("dump", alone.pid, "-o", last, "--tcp", "established").result  # noqa: B018
    assert tables() == known, "CRIU makes its packet filter for nothing as well"


STRANGER = """
import os, socket, sys, time
if os.fork():
    os.wait()
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
client = socket.create_connection(server.getsockname()); other = server.accept()[0]
open("ready", "w").close()
while line.recv(1): pass
while True:
    with open("closed", "a") as log: log.write("on\\n")
    time.sleep(0.05)
"""


def test_a_peer_outside_needs_a_word(place: Field) -> None:
    """D07: plan, dump and rehearsal name the peer; then it is closed, with all others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        job = place.start([sys.executable, "-S", "-c", STRANGER, str(server.getsockname()[1])])
        peer = server.accept()[0]
    wait_for("the job is ready", (place.folder / "ready").exists)
    image = place.folder / "image"
    with peer:
        told = [
            place.gpuckpt("plan", job.pid, "-o", image),
            place.gpuckpt("dump", job.pid, "-o", image),
            place.gpuckpt("rehearse", job.pid, "--dump", "-o", image),
        ]
        for one in told:
            (found,) = [x for x in one.json["error"]["findings"] if x["severity"] == "blocker"]
            assert (one.code, found["id"]) == (4, "tcp-connected")
            assert f"process {os.getpid()} " in found["reason"]
            assert "--tcp close" in found["remedy"]
        (line,) = told[0].json["result"]["next"]
        assert line == f"gpuckpt dump {job.pid} -o {image} --tcp close"
        warned = {
            one["id"] for one in place.gpuckpt("plan", job.pid, "--tcp", "close").result["findings"]
        }
        assert "tcp-closed-inside" in warned
        place.dump(job, "--tcp", "close")
        assert peer.recv(1) == b"", "the peer was not told"
    assert "tcp-closed" in {one["id"] for one in restored(place, image)[0]["findings"]}
    wait_for("the job goes on without", lambda: lines_of(place.folder / "closed"))
