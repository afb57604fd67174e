"""Every external call of a restore fails or is interrupted, before and after its effect.

Afterwards nothing of the job is left on the host, no CUDA process was ended while the driver held
live state for it, the image is as it was, and the next restore works.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError, HostMismatch, Interrupted, RestoreFailed, StoreFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, Inside, RestoreRequest, RestoreResult
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.target.judge import PATIENCE
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.location import Url
from gpuckpt.model import CudaState
from gpuckpt.tools.diag import TIME_WAIT, Connection
from gpuckpt.tools.surroundings import Surroundings
from tests.fakes.host import INIT_PID, ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.location import Location


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeHost]:
    """Make one image, and remember the host it was made on."""
    folder = tmp_path_factory.mktemp("dumped")
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.around_of = {ROOT_PID: Surroundings(expired=(5,))}
    (folder / "state").mkdir()
    tools = host.toolbox(folder / "state")
    dump(tools, DumpRequest(ROOT_PID, folder / "image"), Silent(), Interrupts())
    return folder / "image", before


def empty_host(before: FakeHost) -> FakeHost:
    """Return the host without the job, ready to take it back."""
    host = FakeHost.with_job()
    host.restored = {pid: p for pid, p in before.processes.items() if pid >= ROOT_PID}
    for pid in host.restored:
        del host.processes[pid]
    host.cuda.clear()
    return host


def run(host: FakeHost, image: Location, state: Path, *, apart: bool = False) -> RestoreResult:
    interrupts = Interrupts()
    host.interrupts = interrupts
    state.mkdir(exist_ok=True)
    request = RestoreRequest(
        image,
        settle=0.0,
        on_verify_fail="kill",
        thp=True,
        pid_namespace=apart,
        prove=True,
        post_restore="tell it",
    )
    return restore(host.toolbox(state), request, Silent(), interrupts)


@pytest.mark.parametrize("apart", [False, True])
def test_every_call_of_a_restore(
    dumped: tuple[Path, FakeHost], tmp_path: Path, *, apart: bool
) -> None:
    """Whatever goes wrong, the host is as it was and the image can be restored again.

    In a pid namespace as well: neither it nor its process 1 is left.
    """
    image, before = dumped
    good = empty_host(before)
    result = run(good, image, tmp_path / "good", apart=apart)
    assert good.huge_pages == "madvise"
    if apart:
        assert result.inside == Inside(INIT_PID, ROOT_PID, tuple(good.restored))
        assert {good.inside[pid]: state for pid, state in good.cuda.items()} == before.cuda
        assert {good.inside[pid] for pid in result.pids} == set(good.restored)
    else:
        assert result.root_pid == ROOT_PID
        assert {one.ref for one in good.processes.values()} == {
            one.ref for one in before.processes.values()
        }
        assert good.cuda == before.cuda
    last = len(good.calls) - good.calls[::-1].index("nvidia.uses")
    assert {"proc.fire", "memory.task", "net.hold", "net.release", "shell.run"} <= set(good.calls)
    first = good.calls.index("criu.restore") if apart else 0  # until then it is all the same
    for number, name in enumerate(good.calls[first:last], first + 1):
        for kind in ("error", "signal"):
            if name in {"host.set_huge_pages", "proc.fire"} and kind == "error":
                continue  # it goes on without: tests/flow/test_huge_pages.py, test_restore.py
            for when in ("after",) if apart else ("before", "after"):
                host = empty_host(before)
                host.fault = Fault(number, kind, when)
                state = tmp_path / f"{number}-{kind}-{when}"
                try:
                    run(host, image, state, apart=apart)
                except Interrupted:
                    assert kind == "signal", (number, name)
                except (GpuckptError, OSError):
                    assert kind == "error", (number, name)
                else:
                    pytest.fail(f"{kind} {when} call {number} ({name}) went unnoticed")
                assert set(host.processes) == {os.getpid()}, (number, name, kind, when)
                assert not host.cuda
                assert not host.ended_live, "a live CUDA process was ended"
                assert not host.adopting
                assert not host.filters, (number, name, kind, when)
                assert host.huge_pages == "madvise", (number, name, kind, when)
                assert not Journal(state).entries()
    assert run(empty_host(before), image, tmp_path / "again", apart=apart).pids


def test_a_store_that_goes_away_at_any_moment_of_a_restore(
    dumped: tuple[Path, FakeHost], tmp_path: Path
) -> None:
    """Each of the calls that read the image from a store fails, and all that come after it."""
    image, before = dumped
    url = Url("s3://bucket/image")

    def host_with_store() -> FakeHost:
        host = empty_host(before)
        there = host.stores.folder(url).there
        for path in (path for path in image.rglob("*") if path.is_file()):
            there[str(path.relative_to(image))] = path.read_bytes()
        return host

    good = host_with_store()
    assert run(good, url, tmp_path / "good").image == url
    asked = [number for number, name in enumerate(good.calls, 1) if name.startswith("store.")]
    assert len(asked) > len(good.stores.folder(url).there)
    for number in asked:
        host = host_with_store()
        host.fault = Fault(number, _goes_away, "before")
        state = tmp_path / str(number)
        with suppress(StoreFailed):  # what is needed may have been read by then
            run(host, url, state)
            continue
        assert set(host.processes) == {os.getpid()}, number
        assert not host.cuda
        assert not host.filters
        assert not host.adopting
        assert not Journal(state).entries()


def _goes_away(host: FakeHost) -> None:
    host.stores.away = "gone"


def test_a_stranger_that_took_a_pid_is_not_ended(
    dumped: tuple[Path, FakeHost], tmp_path: Path
) -> None:
    """A pid that was free when it was looked at may be somebody's when CRIU fails for it."""
    image, before = dumped
    good = empty_host(before)
    run(good, image, tmp_path / "good")
    host = empty_host(before)
    stranger = process(ROOT_PID + 1)

    def take_the_pid(host: FakeHost) -> None:
        host.processes[stranger.pid] = stranger
        raise RestoreFailed(f"pid {stranger.pid}, which the job had, is taken on this host")

    host.fault = Fault(good.calls.index("criu.restore") + 1, take_the_pid, "before")
    with pytest.raises(RestoreFailed):
        run(host, image, tmp_path / "state")
    assert host.processes[stranger.pid] is stranger


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
def test_a_closed_connection_that_cannot_be_forgotten(
    dumped: tuple[Path, FakeHost],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    when: str,
) -> None:
    """It is waited for, and a signal ends the wait; nothing has been started by then."""
    gone = (kind, when) == ("error", "after")  # then the next look tells
    monkeypatch.setitem(PATIENCE, "port-lingering", 60.0 if gone else 0.0)
    image, before = dumped
    ends = ("127.0.0.1", 6000, "127.0.0.1", 6001)
    remains = [Connection(ends, TIME_WAIT, 0, 0, (2, b"key"))]
    good = empty_host(before)
    good.remains = [*remains]
    run(good, image, tmp_path / "good")
    host = empty_host(before)
    host.remains = [*remains]
    host.fault = Fault(good.calls.index("net.forget") + 1, kind, when)
    if gone:
        run(host, image, tmp_path / "state")
        return
    with pytest.raises(Interrupted if kind == "signal" else HostMismatch):
        run(host, image, tmp_path / "state")
    assert "criu.restore" not in host.calls
    assert not Journal(tmp_path / "state").entries()


def test_too_little_gpu_memory_is_refused_before_anything(
    dumped: tuple[Path, FakeHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver restore that runs out of memory is stuck for good, so it is never tried."""
    monkeypatch.setitem(PATIENCE, "gpu-memory", 0.0)
    image, before = dumped
    host = empty_host(before)
    host.gpu_free = 1 << 20
    with pytest.raises(GpuckptError) as caught:
        run(host, image, tmp_path / "state")
    assert [finding.id for finding in caught.value.findings] == ["gpu-memory"]
    assert "criu.restore" not in host.calls


@pytest.mark.parametrize("on_verify_fail", ["keep", "kill"])
def test_a_failed_look_does_as_it_was_told(
    dumped: tuple[Path, FakeHost], tmp_path: Path, on_verify_fail: str
) -> None:
    """`keep` leaves the job as it is, `kill` ends it, suspended first."""
    image, before = dumped
    host = empty_host(before)
    state = tmp_path / "state"
    state.mkdir()
    request = RestoreRequest(
        image,
        settle=0.0,
        probe="false",
        probe_timeout=0.0,
        on_verify_fail=on_verify_fail,  # type: ignore[arg-type]
    )
    host.probe_answer = "false ended with status 1"
    with pytest.raises(GpuckptError, match="did not pass") as caught:
        restore(host.toolbox(state), request, Silent(), Interrupts())
    assert caught.value.exit_code == 11
    kept = on_verify_fail == "keep"
    assert ("was kept" in caught.value.hint, "was ended" in caught.value.hint) == (kept, not kept)
    assert (ROOT_PID in host.processes) is kept
    assert set(host.cuda.values()) == ({CudaState.RUNNING} if kept else set())
    assert not host.ended_live
    assert not Journal(state).entries()


def test_cpus_that_are_not_here_are_warned_of(tmp_path: Path) -> None:
    """Bindings survive the image; those that cannot be had do not stop a restore."""
    host = FakeHost.with_job()
    host.bindings = {ROOT_PID: frozenset({0}), ROOT_PID + 1: frozenset({1})}
    before, wanted = FakeHost.with_job(), dict(host.bindings)
    dump(
        host.toolbox(tmp_path),
        DumpRequest(ROOT_PID, tmp_path / "image"),
        Silent(),
        Interrupts(),
    )
    target = empty_host(before)
    target.refused = {ROOT_PID + 1}
    result = run(target, tmp_path / "image", tmp_path / "state")
    assert {pid: cpus for pid, cpus in target.bindings.items() if cpus} == wanted
    assert [(one.id, one.pid) for one in result.findings] == [("cpus", ROOT_PID + 1)]
