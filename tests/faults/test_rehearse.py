"""Every external call of a rehearsal fails or is interrupted, before and after its effect.

Whatever happens, the job must be as it was afterwards, and nothing of the rehearsal may be left:
no image, no stage, no folder, no journal entry, no driver helper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError, Interrupted
from gpuckpt.events import Silent
from gpuckpt.flow.gpu import sameness
from gpuckpt.flow.rehearse import rehearse
from gpuckpt.flow.request import DumpRequest, RehearseRequest
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from tests.fakes.host import ROOT_PID, FakeHost, Fault

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.request import RehearseResult


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sameness, "WATCH_SECONDS", 0.0)


def run(host: FakeHost, folder: Path, *, real: bool) -> RehearseResult:
    interrupts = Interrupts()
    host.interrupts = interrupts
    (folder / "state").mkdir(parents=True, exist_ok=True)
    what = DumpRequest(ROOT_PID, folder / "scratch", thp=True)
    request = RehearseRequest(what, stay=0.001, settle=0.0, real=real, prove=not real)
    return rehearse(host.toolbox(folder / "state"), request, Silent(), interrupts)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
@pytest.mark.parametrize("real", [False, True], ids=["in-place", "dump"])
def test_every_call_of_a_rehearsal(tmp_path: Path, kind: str, when: str, *, real: bool) -> None:
    """One fault anywhere never leaves the job without its GPU state, nor anything else behind."""
    good = FakeHost.with_job()
    run(good, tmp_path / "good", real=real)
    assert {"cuda.lock", "cuda.checkpoint", "cuda.restore", "cuda.unlock"} <= set(good.calls)
    assert real or {"memory.populated", "memory.task"} <= set(good.calls)
    for number, name in enumerate(good.calls, 1):
        if real and name == "cuda.close" and kind == "error":
            continue  # the image stands, the job runs, and the helpers go when this program ends
        if name == "host.set_huge_pages" and kind == "error":
            continue  # it goes on without: tests/flow/test_huge_pages.py
        folder = tmp_path / f"{number}"
        host, before = FakeHost.with_job(), FakeHost.with_job()
        host.fault = Fault(number, kind, when)
        told: Exception | None = None
        try:
            run(host, folder, real=real)
        except (GpuckptError, OSError) as why:
            told = why
        at = (number, name, told)
        assert host.calls[number - 1] == name
        if kind == "signal":
            assert told is None or isinstance(told, Interrupted), at
        assert host.processes == before.processes, at
        assert host.cuda == before.cuda, at
        assert host.huge_pages == before.huge_pages, at
        assert not host.armed, at
        assert [path.name for path in folder.iterdir()] == ["state"], at
        assert not Journal(folder / "state").entries(), at
        assert not list((folder / "state" / "run").glob("*")), at


@pytest.mark.parametrize("real", [False, True], ids=["in-place", "dump"])
def test_a_signal_up_to_the_way_back_ends_a_rehearsal(tmp_path: Path, *, real: bool) -> None:
    """From the way back on it is too late to stop, and the rehearsal is as good as done."""
    good = FakeHost.with_job()
    run(good, tmp_path / "good", real=real)
    for name in ("cuda.lock", "cuda.checkpoint"):
        host = FakeHost.with_job()
        host.fault = Fault(good.calls.index(name) + 1, "signal", "after")
        with pytest.raises(Interrupted):
            run(host, tmp_path / name, real=real)
