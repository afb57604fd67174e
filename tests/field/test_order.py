"""G, S, P: what is said when a step seems to succeed and did not, on a host that is a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, RestoreFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.model import Version
from gpuckpt.tools.criu import Criu
from gpuckpt.tools.criurun import CriuOptions, RestoreRun
from gpuckpt.tools.run import Runner
from tests.fakes.host import ROOT_PID, FakeHost, Fault

if TYPE_CHECKING:
    from collections.abc import Callable


def brought_back(folder: Path, change: Callable[[FakeHost], None] | None, at: str) -> FakeHost:
    """Dump the usual job, then restore it while `change` happens to the host before call `at`."""
    source, before = FakeHost.with_job(), FakeHost.with_job()
    (folder / "state").mkdir(exist_ok=True)
    dump(
        source.toolbox(folder / "state"),
        DumpRequest(ROOT_PID, folder / "image"),
        Silent(),
        Interrupts(),
    )
    host = _try(folder, before, None)
    if change is not None:
        host = _try(folder, before, Fault(host.calls.index(at) + 1, change, "before"))
    return host


def _try(folder: Path, before: FakeHost, fault: Fault | None) -> FakeHost:
    host = FakeHost.with_job()
    host.restored = {pid: p for pid, p in before.processes.items() if pid >= ROOT_PID}
    host.cuda.clear()
    for pid in host.restored:
        del host.processes[pid]
    host.fault, host.interrupts = fault, Interrupts()
    request = RestoreRequest(folder / "image", settle=0.0, on_verify_fail="kill")
    restore(host.toolbox(folder / "state"), request, Silent(), host.interrupts)
    return host


def test_a_process_that_is_gone_after_criu_said_restored(tmp_path: Path) -> None:
    """G34: looked for after CRIU, and again after the driver."""

    def die(host: FakeHost) -> None:
        pid = max(host.cuda)
        host.processes[pid] = replace(host.processes[pid], state="Z", threads=(pid,))

    good = brought_back(tmp_path, None, "")
    for at in ("criu.approve", "cuda.unlock"):
        folder = tmp_path / at
        folder.mkdir()
        with pytest.raises(GpuckptError) as caught:
            brought_back(folder, die, at)
        assert caught.value.exit_code in {9, 10, 11}, caught.value
        told = str(caught.value) + " ".join(one.reason for one in caught.value.findings)
        assert str(max(good.cuda)) in told, (at, told)


def test_another_process_in_place_of_the_restored_one(tmp_path: Path) -> None:
    """S13: it is the job's identity that is looked at, not that something runs."""

    def start_afresh(host: FakeHost) -> None:
        host.restored[ROOT_PID] = replace(host.restored[ROOT_PID], exe="/usr/bin/fresh")

    with pytest.raises(RestoreFailed, match="another tree") as caught:
        brought_back(tmp_path, start_afresh, "criu.image.inventory.img")
    assert "/usr/bin/fresh" in caught.value.findings[0].reason


FLOOD = """#!/bin/sh
[ "$1" = --version ] && { echo "Version: 4.2.1"; exit 0; }
while [ $# -gt 1 ]; do
  [ "$1" = -W ] && work=$2
  [ "$1" = -o ] && log=$2
  shift
done
echo $$ >"$work/pid"
while :; do echo "pr_err: reading nothing, for ever and ever" >>"$work/$log"; sleep 0.001; done
"""


@pytest.mark.parametrize(("largest", "deadline"), [(1 << 12, 60.0), (1 << 30, 0.7)])
def test_a_criu_that_spins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, deadline: float
) -> None:
    """P09, S02: it has a deadline and a limit to its log, and is ended whatever it does."""
    monkeypatch.setattr("gpuckpt.tools.criu.RESTORE_CURE_SECONDS", 0.1)
    program = tmp_path / "criu"
    program.write_text(FLOOD)
    program.chmod(0o755)
    interrupts = Interrupts()
    run = RestoreRun(
        work=tmp_path,
        has=lambda _name: False,
        send=lambda _name, _fd: None,
        approve=lambda: None,
        options=CriuOptions(),
        stop_fd=interrupts.fd,
        deadline=deadline,
        largest_log=largest,
    )
    with pytest.raises(RestoreFailed) as caught:
        Criu(Runner(), str(program), Version("4.2.1")).restore(run)
    assert ("log" if deadline > 1 else "within") in caught.value.message
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
