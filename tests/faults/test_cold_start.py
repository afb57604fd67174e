"""Every external call of a cold start fails or is interrupted, before and after its effect.

Afterwards nothing of the job runs, or it does and is known: never a second copy of it.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, Interrupted
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.fallback import Back, FallbackRequest, bring_back
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.returning.coldstart import Else
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from tests.fakes.host import COLD_PID, ROOT_PID, FakeHost, Fault

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an image of a job that cannot be restored for want of a file."""
    folder = tmp_path_factory.mktemp("spoiled")
    host = FakeHost.with_job(cuda=0)
    (folder / "state").mkdir()
    tools = host.toolbox(folder / "state")
    dump(tools, DumpRequest(ROOT_PID, folder / "image"), Silent(), Interrupts())
    next((folder / "image" / "criu").glob("pages-*")).unlink()
    return folder / "image"


def run(host: FakeHost, image: Path, state: Path) -> Back:
    state.mkdir(exist_ok=True)
    host.interrupts = Interrupts()
    what = RestoreRequest(image, settle=0.0, probe="ask", probe_timeout=1.0)
    request = FallbackRequest(what, (image,), cold=Else())
    return bring_back(host.toolbox(state), request, Silent(), host.interrupts)


def empty() -> FakeHost:
    host = FakeHost.with_job(cuda=0)
    for pid in [pid for pid in host.processes if pid >= ROOT_PID]:
        del host.processes[pid]
    return host


def test_every_call_of_a_cold_start(spoiled: Path, tmp_path: Path) -> None:
    good = empty()
    assert run(good, spoiled, tmp_path / "good").started
    first = good.calls.index("starter.account")
    assert good.calls[first:].count("ready.go") == 1
    for number, name in enumerate(good.calls[first:], first + 1):
        for kind in ("error", "signal"):
            for when in ("before", "after"):
                host, state = empty(), tmp_path / f"{number}-{kind}-{when}"
                host.fault = Fault(number, kind, when)
                try:
                    run(host, spoiled, state)
                except Interrupted:
                    assert kind == "signal", (number, name)
                except (GpuckptError, OSError):
                    assert kind == "error", (number, name)
                else:
                    pytest.fail(f"{kind} {when} call {number} ({name}) went unnoticed")
                # one that was made and never told to go ends with this process
                waiting = (name, kind, when) == ("starter.ready", "error", "after")
                assert set(host.processes) == {os.getpid(), *([COLD_PID] if waiting else [])}, (
                    number,
                    name,
                    kind,
                    when,
                )
                assert not Journal(state).entries()
                shutil.rmtree(state)


def test_a_gpuckpt_that_is_killed_leaves_no_second_copy(spoiled: Path, tmp_path: Path) -> None:
    """After the job went it is written down: the next run meets it, and starts no other."""
    good = empty()
    run(good, spoiled, tmp_path / "good")

    class Killed(BaseException):
        """Nothing after it is done, nothing is put back."""

    def kill(_: FakeHost) -> None:
        raise Killed

    host = empty()
    host.fault = Fault(good.calls.index("ready.go") + 1, kill, "after")
    with pytest.raises(Killed):
        run(host, spoiled, tmp_path / "state")
    # a killed one puts nothing back: its job runs
    host.processes[COLD_PID] = replace(good.processes[COLD_PID], ppid=1)
    host.fault = None
    with pytest.raises(GpuckptError) as caught:
        run(host, spoiled, tmp_path / "state")
    told = {finding.id for one in caught.value.attempts for finding in one.findings}
    assert "job-runs" in told
    assert len(host.started) == 1
