"""Whether an image may be restored here: what is waited for, what is said of it, and when."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, HostMismatch, Interrupted
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.preview import preview
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.ledger import remember
from gpuckpt.flow.returning.target.facts import gather
from gpuckpt.flow.returning.target.judge import PATIENCE, judge, refusal, wait_for_room
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.image.outside import (
    ConnectionRecord,
    FileRecord,
    FolderRecord,
    ListenerRecord,
    LockRecord,
)
from gpuckpt.image.store import Image
from gpuckpt.model import TcpPolicy
from gpuckpt.tools.diag import Connection
from gpuckpt.tools.locks import FileLock
from gpuckpt.tools.net import PortState
from tests import image_samples
from tests.fakes.host import ROOT_PID, FakeHost, process

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding

PORT = 6379


def listening() -> Manifest:
    """Return the manifest of a plain job with one port and one connection."""
    plain = image_samples.manifest()
    one = ListenerRecord(protocol="tcp", address="127.0.0.1", port=PORT)
    talk = ConnectionRecord(local="127.0.0.1", local_port=PORT, remote="127.0.0.1", remote_port=9)
    outside = msgspec.structs.replace(plain.outside, listeners=(one,), connections=(talk,))
    options = msgspec.structs.replace(plain.options, tcp=TcpPolicy.ESTABLISHED)
    bare = msgspec.structs.replace(plain, ids=(), nvidia=None, options=options, tree=plain.tree[:1])
    return msgspec.structs.replace(bare, outside=outside)


def wait(folder: Path, *states: PortState, interrupts: Interrupts | None = None) -> list[Finding]:
    """Wait on a host whose port is in these states one after the other; return what is left."""
    host = FakeHost(ports={PORT: list(states)})
    tools, manifest = host.toolbox(folder), listening()
    said: list[str] = []
    facts = gather(tools, manifest)
    found = wait_for_room(tools, manifest, facts, interrupts or Interrupts(), said.append)
    assert len(said) == len(set(said)), "the same thing was said twice"
    assert bool(said) == (states[0] is PortState.LINGERING)
    assert all(str(PORT) in one and "at most" in one for one in said)
    return [one for one in found if one.id.startswith("port-")]


def test_closed_connections_are_waited_for_and_that_is_said(tmp_path: Path) -> None:
    """A silent minute looks like a hang."""
    assert wait(tmp_path, PortState.LINGERING, PortState.LINGERING, PortState.FREE) == []


def closed(state: int = 6, unsent: int = 0, inode: int = 0) -> Connection:
    return Connection(("127.0.0.1", PORT, "127.0.0.1", 9), state, inode, unsent, (2, b"key"))


def forget(folder: Path, *remains: Connection, **host: Any) -> tuple[list[str], list[Finding]]:
    """Wait on a host with these connections; return what was said, and what is left of it."""
    fake = FakeHost(**host)
    fake.remains = list(remains)
    tools, manifest = fake.toolbox(folder), listening()
    said: list[str] = []
    facts = gather(tools, manifest)
    found = wait_for_room(tools, manifest, facts, Interrupts(), said.append)
    return said, [one for one in found if one.id in {"port-lingering", "connection-taken"}]


def test_closed_connections_are_forgotten_and_that_is_said(tmp_path: Path) -> None:
    lingering = {"ports": {PORT: [PortState.LINGERING, PortState.FREE]}}
    said, found = forget(tmp_path, closed(), closed(5), **lingering)
    assert said == [f"forgot 2 closed connections (FIN_WAIT2, TIME_WAIT) on 127.0.0.1:{PORT}"]
    assert found == []


def test_connections_that_are_no_remains_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that somebody has, one that has bytes to deliver, and one the kernel does not forget."""
    monkeypatch.setitem(PATIENCE, "port-lingering", 0.05)
    _, (taken,) = forget(tmp_path, closed(1, inode=5))
    assert (taken.id, taken.blocks) == ("connection-taken", True)
    for remains, stubborn in ((closed(4, unsent=9), False), (closed(), True)):
        said, (left,) = forget(tmp_path, remains, stubborn=stubborn)
        assert (left.id, left.blocks) == ("port-lingering", True)
        assert "at most" in said[0]


def test_one_connection_is_told_once(tmp_path: Path) -> None:
    """Both ends of one that is open, and all that were closed."""
    fake = FakeHost()
    here, there = ("127.0.0.1", PORT), ("127.0.0.1", 9)
    ends = (here + there, there + here)
    fake.remains = [*(Connection(one, 1, 5, 0, (2, b"key")) for one in ends), closed(), closed(5)]
    manifest = listening()
    found = judge(manifest, gather(fake.toolbox(tmp_path), manifest))
    told = [one for one in found if one.id in {"connection-taken", "port-lingering"}]
    assert [one.id for one in told] == ["connection-taken", "port-lingering"]
    assert told[1].reason.startswith("2 connections between ends that the job had")


def test_what_does_not_pass_in_its_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PATIENCE, "port-lingering", 0.05)
    (found,) = wait(tmp_path, PortState.LINGERING)
    assert (found.id, found.blocks) == ("port-lingering", True)


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    stopped = Interrupts()
    stopped.request(2)
    with pytest.raises(Interrupted):
        wait(tmp_path, PortState.LINGERING, interrupts=stopped)


def test_a_taken_port_is_not_waited_for_and_nothing_can_force_it(tmp_path: Path) -> None:
    (found,) = wait(tmp_path, PortState.TAKEN)
    error = refusal([found], frozenset())
    assert isinstance(error, HostMismatch)
    assert "--force-gate" not in error.hint


@pytest.fixture
def dumped(tmp_path: Path) -> tuple[Path, FakeHost]:
    """Return an image of a job with GPUs, and the host it was taken from."""
    host = FakeHost.with_job()
    host.restored = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    image = tmp_path / "image"
    dump(host.toolbox(tmp_path / "first"), DumpRequest(ROOT_PID, image), Silent(), Interrupts())
    return image, host


def test_gates_and_room_are_told_together_and_nothing_is_waited_for(
    dumped: tuple[Path, FakeHost], tmp_path: Path
) -> None:
    """One refusal lists a missing file, a taken pid and short GPU memory, in no time."""
    image, host = dumped
    host.processes[ROOT_PID + 1] = process(ROOT_PID + 1, argv=("sleep", "9"))
    host.gpu_free = 1 << 20
    host.boot_id = "another"
    tools = host.toolbox(tmp_path / "state")
    seen = preview(tools, image)
    wanted = {"pid-taken", "gpu-memory"}
    assert {one.id for one in seen.findings if one.blocks} == wanted
    assert isinstance(seen.error, HostMismatch)
    calls = len(host.calls)
    with pytest.raises(HostMismatch) as caught:
        restore(tools, RestoreRequest(image), Silent(), Interrupts())
    assert {one.id for one in caught.value.findings} == wanted
    assert "sleep 9" in str([one.reason for one in caught.value.findings])
    asked = host.calls[calls:]
    assert asked.count("nvidia.facts") == 1, "it waited"


def test_a_preview_touches_nothing(dumped: tuple[Path, FakeHost], tmp_path: Path) -> None:
    image, host = dumped
    calls = len(host.calls)
    state = tmp_path / "never-made"
    assert preview(host.toolbox(state), image).error is None
    changing = {"adopt_orphans", "kill", "signal", "reap", "restore", "dump", "open", "bind", "run"}
    assert not {call.partition(".")[2] for call in host.calls[calls:]} & changing
    assert not state.exists()


def test_an_image_of_others_and_one_with_damage_say_all_the_rest_as_well(
    dumped: tuple[Path, FakeHost], tmp_path: Path
) -> None:
    image, host = dumped
    host.gpu_free = 1 << 20
    tools = host.toolbox(tmp_path / "state")
    image.chmod(0o777)
    seen = preview(tools, image)
    assert [one.id for one in seen.findings if one.blocks] == ["image-untrusted", "gpu-memory"]
    assert seen.error is not None
    assert seen.error.exit_code == 7
    image.chmod(0o700)
    (image / "criu" / "pstree.img.zst").write_bytes(b"")
    seen = preview(tools, image)
    assert "gpu-memory" in [one.id for one in seen.findings]
    assert seen.error is not None
    assert seen.error.name == "image_damaged"
    assert any("pstree.img" in one.object for one in seen.findings)


def test_a_second_restore_knows_of_the_first(dumped: tuple[Path, FakeHost], tmp_path: Path) -> None:
    """While that tree runs it is named as the same job; afterwards only a warning is left."""
    image, host = dumped
    tools = host.toolbox(tmp_path / "state")
    restore(tools, RestoreRequest(image, settle=0.0), Silent(), Interrupts())
    with pytest.raises(GpuckptError) as caught:
        restore(tools, RestoreRequest(image), Silent(), Interrupts())
    (found,) = [one for one in caught.value.findings if one.id == "job-runs"]
    assert "restored here at" in found.reason
    assert "pid-taken" not in [one.id for one in caught.value.findings]
    for pid in host.restored:
        del host.processes[pid]
        host.cuda.pop(pid, None)
    seen = preview(tools, image)
    assert seen.error is None
    assert "restored-before" in [one.id for one in seen.findings]


def test_copies_of_earlier_restores_are_known_while_they_run(
    dumped: tuple[Path, FakeHost], tmp_path: Path
) -> None:
    """The last copy has ended; the one before, in a pid namespace of its own, runs."""
    image, host = dumped
    tools = host.toolbox(tmp_path / "state")
    opened = Image.open(image)
    earlier, later = process(7001), process(7002)
    host.processes |= {7001: earlier, 7002: later}
    for one in (earlier, later):
        remember(tools, opened, "2026-01-01T00:00:00Z", (one.pid,), ())
    del host.processes[7002]
    (found,) = [one for one in preview(tools, image).findings if one.id == "job-runs"]
    assert found.reason == "This very job was restored here before and runs: process 7001."


def test_another_restore_is_named(dumped: tuple[Path, FakeHost], tmp_path: Path) -> None:
    """Its journal entry is there, and its owner lives."""
    image, host = dumped
    other = process(77)
    host.processes[77] = other
    entry = Entry(
        id="1-77",
        operation="restore",
        started="2026-01-01T00:00:00Z",
        boot_id="boot",
        owner=other.ref,
        image="/other",
        processes=(),
        first={},
    )
    Journal(tmp_path / "state").open(entry, lambda _: True)
    tools = host.toolbox(tmp_path / "state")
    found = judge(preview(tools, image).manifest, preview(tools, image).facts)
    assert [(one.id, one.object) for one in found if one.id == "another-restore"] == [
        ("another-restore", "/other")
    ]


def test_a_number_given_back_between_two_looks(
    dumped: tuple[Path, FakeHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user ended after it was seen in use: nobody has it, so it stops nothing."""
    image, host = dumped
    number = min(host.restored)
    tools = host.toolbox(tmp_path / "state")
    looks = [(number,), ()]
    monkeypatch.setattr(tools.proc, "taken", lambda _: looks.pop(0))
    assert preview(tools, image).facts.taken == {}
    monkeypatch.setattr(tools.proc, "taken", lambda _: (number,))
    assert preview(tools, image).facts.taken == {number: None}


def test_a_job_that_cannot_run_is_told(dumped: tuple[Path, FakeHost], tmp_path: Path) -> None:
    """Every thread of one waits in the kernel without end: it is alive, and that proves little."""
    image, host = dumped
    stuck = max(host.restored)
    host.restored[stuck] = replace(host.restored[stuck], state="D")
    tools = host.toolbox(tmp_path / "state")
    result = restore(tools, RestoreRequest(image, settle=0.0), Silent(), Interrupts())
    found = {one.id: one for one in result.findings}
    assert found["no-progress"].pid == stuck
    assert "all wait without end" in found["no-progress"].reason
    assert result.progress == "idle"


def test_a_parent_that_waits_for_nobody(dumped: tuple[Path, FakeHost], tmp_path: Path) -> None:
    """Its zombies are there before and after; with --wait we are the parent and it is no matter."""
    image, host = dumped
    for wait_too in (False, True):
        host.processes = {1: process(1, 0, comm="sleep"), 50: process(50, 1, state="Z")}
        host.processes[os.getpid()] = process(os.getpid())
        host.cuda.clear()
        host.boot_id = f"another {wait_too}"
        request = RestoreRequest(image, settle=0.0, stays=wait_too)
        result = restore(host.toolbox(tmp_path / "state"), request, Silent(), Interrupts())
        told = [one.object for one in result.findings if one.id == "parent-does-not-wait"]
        assert told == ([] if wait_too else ["pid 1 (sleep)"])


def test_a_job_that_works_in_the_memory_of_its_namespace(tmp_path: Path) -> None:
    """Its folder is made there; of the files, and locks, of others here it knows nothing."""
    host = FakeHost(folders={"/dev/shm/job"})
    lock = LockRecord(path="/dev/shm/job/lock", kind="flock", exclusive=True)
    host.file_locks[lock.path] = (FileLock(7, "flock", exclusive=True),)
    plain = image_samples.manifest()
    opened = tuple(
        FileRecord(path=f"/dev/shm/job{name}", size=10, mode=mode, build_id="", mtime_ns=1)
        for name, mode in (("", 0o040755), ("/lock", 0o100644))
    )
    outside = msgspec.structs.replace(plain.outside, files=opened, locks=(lock,))
    manifest = msgspec.structs.replace(plain, outside=outside)
    tools = host.toolbox(tmp_path)
    here, apart = (gather(tools, manifest, apart=apart) for apart in (False, True))
    assert set(here.locked) == {lock.path}
    assert apart.locked == {}
    assert [path for path, now in apart.files.items() if now is None] == [lock.path]
    made = FolderRecord(path="/dev/shm/job", mode=0o755, uid=0, gid=0)
    carries = msgspec.structs.replace(outside, folders=(made,))
    host.missing.add("/dev/shm/job")
    for known, missing in ((outside, True), (carries, False)):
        after_boot = msgspec.structs.replace(plain, outside=known)
        seen = gather(tools, after_boot)
        assert (seen.files["/dev/shm/job"] is None) == missing
