"""Which GPUs a restore asks the driver for, what is refused, and what is looked at afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.errors import HostMismatch
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.preview import preview
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.work.interrupts import Interrupts
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.request import RestoreResult

A, B, C = (f"GPU-0000000{letter}-0000-4000-8000-00000000000{letter}" for letter in "abc")


class Place:
    """An image of a job with two ranks on GPU A of a host with A and B, and that host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = folder / "image"
        self.host = FakeHost.with_job()
        self.host.gpus = (A, B)
        self.host.restored = {p: one for p, one in self.host.processes.items() if p >= ROOT_PID}
        first = self.host.toolbox(folder / "first")
        dump(first, DumpRequest(ROOT_PID, self.image), Silent(), Interrupts())

    def restore(self, **options: Any) -> RestoreResult:
        request = RestoreRequest(self.image, settle=0.0, **options)
        return restore(self.host.toolbox(self.folder / "state"), request, Silent(), Interrupts())

    def refused(self, **options: Any) -> HostMismatch:
        with pytest.raises(HostMismatch) as caught:
            self.restore(**options)
        assert not set(self.host.restored) & set(self.host.processes)
        assert self.host.gpu_maps == []
        return caught.value


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_same_gpus_need_no_map(place: Place) -> None:
    assert place.restore().gpu_map == {}
    assert place.host.gpu_maps == [{}]


def test_a_swap_is_asked_of_the_driver_whole(place: Place) -> None:
    place.host.on_gpu = dict.fromkeys(place.host.gpu_bytes, B)  # where it will be
    result = place.restore(gpu_map=(("0", "1"),))
    assert result.gpu_map == {A: B, B: A}
    assert place.host.gpu_maps == [result.gpu_map]
    assert "gpu-elsewhere" not in [one.id for one in result.findings]


def test_a_job_that_is_on_another_gpu_than_planned_is_told(place: Place) -> None:
    result = place.restore(gpu_map=(("0", "1"),))
    told = [one for one in result.findings if one.id == "gpu-elsewhere"]
    assert [one.pid for one in told] == sorted(place.host.gpu_bytes)
    assert B in told[0].reason
    assert not told[0].blocks


def test_a_refusal_has_the_table(place: Place) -> None:
    place.host.gpus = (C,)
    error = place.refused()
    assert [(one.old.uuid, one.new and one.new.uuid) for one in error.gpus] == [(A, C), (B, None)]
    error = place.refused(gpu_map=(("7", "0"),))
    assert {one.id for one in error.findings} >= {"gpu-map-unknown", "gate-gpu-count"}


def test_the_number_of_gpus_can_be_forced(place: Place) -> None:
    """The map then has what the job used, and the driver may refuse it."""
    place.host.gpus = (C,)
    force = frozenset({"gate-gpu-count"})
    assert place.restore(force_gates=force).gpu_map == {A: C}
    assert place.host.gpu_maps == [{A: C}]


def test_more_gpus_are_refused_until_forced(place: Place) -> None:
    place.host.gpus = (A, B, C)
    assert [one.id for one in place.refused().findings if one.blocks] == ["gate-gpu-count"]
    force = frozenset({"gate-gpu-count"})
    assert place.restore(force_gates=force).gpu_map == {A: A, B: B}


def test_the_plan_stays_while_memory_is_waited_for(place: Place) -> None:
    """Its table has what is free at the end; who waits is not sent elsewhere meanwhile."""
    host = place.host
    host.gpus = (B, C)
    host.gpu_free = 0
    looks = 0
    original = host.around

    def around(name: str, effect: Any) -> Any:
        nonlocal looks
        looks += name == "nvidia.facts"
        if looks == 3:
            host.gpu_free = 100 << 30
        return original(name, effect)

    host.around = around  # type: ignore[method-assign]
    seen = preview(host.toolbox(place.folder / "other"), place.image)
    assert seen.facts.gpus is not None
    assert place.restore().gpu_map == seen.facts.gpus.map == {A: C, B: B}
