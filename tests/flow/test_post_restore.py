"""The user's command that is told of a restored job: when it runs, what it is told, if it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import VerificationFailed
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, RestoreRequest, RestoreResult
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work.interrupts import Interrupts
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a host from which the job was taken, with an image of it."""
    host = FakeHost.with_job()
    host.restored = {pid: one for pid, one in host.processes.items() if pid >= ROOT_PID}
    (tmp_path / "state").mkdir()
    tools = host.toolbox(tmp_path / "state")
    dump(tools, DumpRequest(ROOT_PID, tmp_path / "image"), Silent(), Interrupts())
    return host


def bring(host: FakeHost, folder: Path, **changes: Any) -> RestoreResult:
    plain = RestoreRequest(folder / "image", settle=0.0, post_restore="tell", probe="ask")
    tools = host.toolbox(folder / "state")
    return restore(tools, replace(plain, **changes), Silent(), Interrupts())


def test_it_is_told_who_the_job_is_now_before_the_probe(host: FakeHost, tmp_path: Path) -> None:
    result = bring(host, tmp_path)
    assert list(host.told) == ["tell", "ask"]
    told = host.told["tell"]
    assert told.pop("GPUCKPT_CHANGED") == ""  # of which all that stands beside it is told
    assert {name: value for name, value in told.items() if value} == {
        "GPUCKPT_ROOT_PID": str(ROOT_PID),
        "GPUCKPT_PIDS": " ".join(map(str, result.pids)),
        "GPUCKPT_IMAGE": str(tmp_path / "image"),
        "GPUCKPT_HOSTNAME_WAS": "fake",
        "GPUCKPT_HOSTNAME_NOW": "fake",
    }
    names = [one.name for one in result.receipt.phases]
    assert names[names.index("verify") :] == ["verify", "post-restore", "probe", "settle"]


def test_in_a_namespace_it_gets_the_pids_of_this_host(host: FakeHost, tmp_path: Path) -> None:
    result = bring(host, tmp_path, pid_namespace=True, probe=None)
    assert result.root_pid != ROOT_PID
    assert host.told["tell"]["GPUCKPT_ROOT_PID"] == str(result.root_pid)
    assert host.told["tell"]["GPUCKPT_PIDS"] == " ".join(map(str, result.pids))


@pytest.mark.parametrize("on_verify_fail", ["keep", "kill"])
def test_its_failure_is_one_of_the_look_afterwards(
    host: FakeHost, tmp_path: Path, on_verify_fail: str
) -> None:
    host.hook_answer = "tell ended with status 1"
    with pytest.raises(VerificationFailed, match="tell ended with status 1") as caught:
        bring(host, tmp_path, on_verify_fail=on_verify_fail)
    assert [one.id for one in caught.value.findings] == ["post-restore"]
    assert "ask" not in host.told
    assert (ROOT_PID in host.processes) is (on_verify_fail == "keep")
