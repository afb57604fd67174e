"""Images that a restore must not touch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from msgspec.structs import replace

from gpuckpt.errors import CudaCallFailed, HostUnfit, ImageUnsupported
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.binding import fire
from gpuckpt.flow.returning.proof import Proof
from gpuckpt.flow.show import show
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.image.store import Image
from gpuckpt.model import CudaOutcome
from gpuckpt.tools.surroundings import Surroundings
from tests.fakes.host import ROOT_PID, FakeHost
from tests.image_samples import seal

if TYPE_CHECKING:
    from pathlib import Path


def test_no_file_is_looked_at_where_a_server_is_gone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path / "state")
    image = tmp_path / "image"
    dump(tools, DumpRequest(ROOT_PID, image, leave_running=True), Silent(), Interrupts())
    host.silent = ("nfs4 at /data",)
    with pytest.raises(HostUnfit, match="nfs4 at /data does not answer"):
        restore(tools, RestoreRequest(image), Silent(), Interrupts())
    with pytest.raises(HostUnfit, match="nfs4 at /data does not answer"):
        dump(tools, DumpRequest(ROOT_PID, tmp_path / "other"), Silent(), Interrupts())


def test_a_driver_that_does_not_answer_afterwards_costs_no_job(tmp_path: Path) -> None:
    """The restored job is kept, and what cannot be told of it is said."""
    (tmp_path / "state").mkdir()
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path / "state")
    image = tmp_path / "image"
    dump(tools, DumpRequest(ROOT_PID, image), Silent(), Interrupts())
    with Image.open(image) as opened:
        manifest = opened.manifest
    pids = sorted(manifest.cuda)
    silent = CudaCallFailed("state", [CudaOutcome(pid, "state", "NO_ANSWER") for pid in pids])
    mute = replace(tools, cuda=mock.Mock(states=mock.Mock(side_effect=silent)))
    found = Proof(mute, manifest, Interrupts())._gpu()
    assert [(one.id, one.pid) for one in found] == [("gpu-state", pid) for pid in pids]
    assert "does not tell" in found[0].reason


def test_what_an_image_needs_and_nobody_knows_is_never_forced(tmp_path: Path) -> None:
    """A restore that would go wrong in silence is refused; showing the image is fine."""
    (tmp_path / "state").mkdir()
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path / "state")
    image = tmp_path / "image"
    dump(tools, DumpRequest(ROOT_PID, image), Silent(), Interrupts())
    plain = json.loads((image / "manifest.json").read_text())
    plain["needs"].append("teleport")
    (image / "manifest.json").write_bytes(seal(plain))
    request = RestoreRequest(image, force_gates=frozenset({"gate-needs", "teleport"}))
    with pytest.raises(ImageUnsupported, match="teleport") as caught:
        restore(tools, request, Silent(), Interrupts())
    assert caught.value.exit_code == 7
    assert "criu.restore" not in host.calls
    assert show(image).unknown_needs == ("teleport",)


def test_timers_that_had_expired_do_so_again(tmp_path: Path) -> None:
    """One that cannot be reached is told, and costs no job."""
    (tmp_path / "state").mkdir()
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path / "state")
    image = tmp_path / "image"
    host.around_of[ROOT_PID] = Surroundings(expired=(5, 9))
    dump(tools, DumpRequest(ROOT_PID, image), Silent(), Interrupts())
    with Image.open(image) as opened:
        assert fire(tools, opened.manifest) == []
        assert host.fired == [(ROOT_PID, 5), (ROOT_PID, 9)]
        lost = mock.Mock(fire=mock.Mock(side_effect=OSError(9, "Bad file descriptor")))
        found = fire(replace(tools, proc=lost), opened.manifest)
    assert [(one.id, one.object, one.pid) for one in found] == [
        ("timer-lost", f"fd {fd} timerfd", ROOT_PID) for fd in (5, 9)
    ]
