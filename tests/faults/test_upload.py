"""A dump to a store: every call fails, is interrupted or is killed, those of the store included.

Afterwards the job is as it was and nothing lies in the store that an image is taken for, or the
image is whole and the job is gone. What could not be removed stands in the journal, and a repair
removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image import sealed
from gpuckpt.location import Url
from tests.fakes.host import ROOT_PID, FakeHost, Fault
from tests.faults.test_killed import killed, mend, places

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URL = Url("s3://bucket/train")
SIZE = {"cuda": 1, "plain": 1}


@pytest.fixture(autouse=True)
def _one_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a store have about the same numbers each time then."""
    monkeypatch.setattr("gpuckpt.image.uploading._WRITERS", 1)


def dumping(folder: Path, *, leave: bool = False) -> Callable[[FakeHost], object]:
    (folder / "state").mkdir(parents=True, exist_ok=True)

    def run(host: FakeHost) -> object:
        host.interrupts = Interrupts()
        request = DumpRequest(ROOT_PID, URL, leave_running=leave)
        return dump(host.toolbox(folder / "state"), request, Silent(), host.interrupts)

    return run


def job() -> FakeHost:
    host = FakeHost.with_job(**SIZE)
    host.gpu_bytes = dict.fromkeys(host.gpu_bytes, 8 << 20)
    host.memory_free = 60 << 30
    return host


def image_of(host: FakeHost) -> bool:
    """Whether there is an image; then it must be whole, and otherwise nothing at all."""
    there = host.stores.objects.get(str(URL), {})
    sizes = {name: len(data) for name, data in there.items() if name.startswith("criu/")}
    if "manifest.json" not in there:
        return False
    manifest = sealed.decode(there["manifest.json"])
    assert {f"criu/{one.name}.zst": one.stored_size for one in manifest.files} == sizes
    return True


def nothing_is_left(host: FakeHost) -> None:
    assert not host.stores.objects.get(str(URL))
    assert not host.stores.unfinished


def outcome(host: FakeHost, run: Callable[[FakeHost], object]) -> Exception | None:
    try:
        run(host)
    except (GpuckptError, OSError) as why:
        return why
    return None


@pytest.mark.parametrize("leave", [False, True], ids=["ends", "stays"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
def test_every_call_of_a_dump(tmp_path: Path, kind: str, when: str, *, leave: bool) -> None:
    good, failed = job(), set()
    dumping(tmp_path / "good", leave=leave)(good)
    for number in range(1, len(good.calls) + 1):
        host, before, folder = job(), job(), tmp_path / str(number)
        host.fault = Fault(number, kind, when)
        why = outcome(host, dumping(folder, leave=leave))
        where = (number, host.calls[number - 1], why)
        if why is None or ROOT_PID not in host.processes:  # later only the telling can fail
            assert image_of(host), where
            assert (ROOT_PID in host.processes) is leave, where
            continue
        failed.add(host.calls[number - 1])
        assert host.processes == before.processes, where
        assert host.cuda == before.cuda, where
        assert not image_of(host), where
        if Journal(folder / "state").entries():
            host.fault = None
            host.move_in()
            mend(host, folder / "state")
        nothing_is_left(host)
    assert {"store.put", "store.names", "upload.write", "upload.close"} <= failed


@pytest.mark.parametrize("leave", [False, True], ids=["ends", "stays"])
def test_a_dump_killed_at_every_call(tmp_path: Path, *, leave: bool) -> None:
    good = job()
    dumping(tmp_path / "good", leave=leave)(good)
    for number in places(good.calls):
        folder, before, victim = tmp_path / str(number), job(), job()
        victim.fault = Fault(number, "", "after")
        host = killed(victim, tmp_path, dumping(folder, leave=leave))
        where = (number, good.calls[number - 1])
        if host is None:  # a call more or less, as threads go
            assert number > len(good.calls) - 5, where
            continue
        host.after_the_death_of_gpuckpt(helpers=False)
        mend(host, folder / "state")
        if ROOT_PID in host.processes:
            assert host.processes == before.processes, where
            assert host.cuda == before.cuda, where
            if not image_of(host):
                nothing_is_left(host)
        else:
            assert image_of(host), where
