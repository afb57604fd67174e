"""Every external call of a dump fails or is interrupted, before and after its effect.

Afterwards the job must be as it was: every process there, none stopped, every GPU in its first
state, no image and no stage on the disk, nothing in the journal. From the commit on the image
counts instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import GpuckptError, Interrupted
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, DumpResult
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image.store import Image
from gpuckpt.model import Carriage
from gpuckpt.tools.tracked import Walk
from gpuckpt.tools.usedfiles import UsedFile
from tests.fakes.host import ROOT_PID, FakeHost, Fault, process

if TYPE_CHECKING:
    from pathlib import Path


def run(host: FakeHost, folder: Path) -> DumpResult:
    interrupts = Interrupts()
    host.interrupts = interrupts
    request = DumpRequest(ROOT_PID, folder / "image", thp=True, track=("/cache",))
    host.trees["/cache"] = Walk("/cache", "folder", "digest", 1, 0)
    (folder / "state").mkdir(exist_ok=True)
    return dump(host.toolbox(folder / "state"), request, Silent(), interrupts)


def calls_of_a_good_dump(folder: Path) -> list[str]:
    host = FakeHost.with_job()
    run(host, folder)
    return host.calls


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return calls_of_a_good_dump(tmp_path_factory.mktemp("good"))


def assert_untouched(host: FakeHost, before: FakeHost, folder: Path) -> None:
    assert host.processes == before.processes
    assert host.cuda == before.cuda
    assert host.huge_pages == before.huge_pages
    assert not host.armed, "driver helpers were left"
    assert [path.name for path in folder.iterdir()] == ["state"], "an image or a stage is there"
    assert not Journal(folder / "state").entries()
    assert not list((folder / "state" / "run").glob("*")), "a work folder was left"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
def test_every_call_of_a_dump(calls: list[str], tmp_path: Path, kind: str, when: str) -> None:
    """Up to the commit nothing that goes wrong leaves a trace."""
    for number, name in enumerate(calls[: calls.index("criu.committed")], 1):
        if name in {"criu.commit", "criu.dump"} and when == "after":
            continue  # the image stands by then: the next tests
        if name in {"host.set_huge_pages", "files.digest"} and kind == "error":
            continue  # it goes on without: tests/flow/test_huge_pages.py, an input unread
        folder = tmp_path / f"{number}"
        folder.mkdir()
        host, before = FakeHost.with_job(), FakeHost.with_job()
        host.fault = Fault(number, kind, when)
        with pytest.raises((GpuckptError, OSError)) as caught:
            run(host, folder)
        assert host.calls[number - 1] == name
        if kind == "signal":
            assert isinstance(caught.value, Interrupted), (number, name, caught.value)
        assert_untouched(host, before, folder)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["error", "signal"])
def test_every_call_for_files_that_go_along(tmp_path: Path, kind: str, when: str) -> None:
    """Nothing of them is left anywhere, and the job goes on."""

    def job() -> FakeHost:
        host = FakeHost.with_job()
        host.used += (UsedFile("/work/log", 1, 9, ("/work/log",), written=True),)
        return host

    good = job()
    result = run(good, tmp_path)
    (carried,) = result.manifest.carried
    assert (carried.names, carried.why) == (("/work/log",), Carriage.WRITTEN)
    assert "files" in [one.name for one in result.receipt.phases]
    calls = good.calls[: good.calls.index("criu.committed")]
    places = [number for number, name in enumerate(calls, 1) if name.startswith("carried.")]
    names = {"carried.used_of", "carried.readable", "carried.used", "carried.examine"}
    assert names | {"carried.copy"} <= {calls[number - 1] for number in places}
    for number in places:
        folder = tmp_path / f"{number}"
        folder.mkdir()
        host, before = job(), job()
        host.fault = Fault(number, kind, when)
        with pytest.raises((GpuckptError, OSError)):
            run(host, folder)
        assert_untouched(host, before, folder)


@pytest.mark.parametrize("kind", ["error", "signal"])
def test_numbers_of_a_namespace_that_cannot_be_told(tmp_path: Path, kind: str) -> None:
    """The job in it goes on, as any does."""
    good = FakeHost.with_job()
    good.go_inside()
    run(good, tmp_path)
    asked = [number for number, name in enumerate(good.calls, 1) if name == "spaces.numbers"]
    assert len(asked) == 2, "for CRIU and for the manifest"
    for number in asked:
        folder = tmp_path / f"{number}"
        folder.mkdir()
        host, before = FakeHost.with_job(), FakeHost.with_job()
        host.go_inside()
        before.go_inside()
        host.fault = Fault(number, kind, "after")
        with pytest.raises((GpuckptError, OSError)):
            run(host, folder)
        assert_untouched(host, before, folder)


def test_a_signal_after_the_commit_changes_nothing(tmp_path: Path) -> None:
    """Once the image stands, a signal no longer leads back: the dump ends as it would have."""
    calls = calls_of_a_good_dump(tmp_path)
    for number in range(calls.index("criu.committed") + 1, len(calls) + 1):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        host = FakeHost.with_job()
        host.fault = Fault(number, "signal", "after")
        run(host, folder)
        with Image.open(folder / "image") as image:
            image.check_sizes()
        assert ROOT_PID not in host.processes
        assert not host.cuda
        assert host.huge_pages == "madvise"
        assert not Journal(folder / "state").entries()


def test_a_late_failure_of_criu_loses_nothing(tmp_path: Path) -> None:
    """The image stands and the tree is gone: whatever CRIU says then, the dump succeeded."""
    calls = calls_of_a_good_dump(tmp_path)
    host = FakeHost.with_job()
    host.fault = Fault(calls.index("criu.dump") + 1, "error", "after")
    folder = tmp_path / "late"
    folder.mkdir()
    result = run(host, folder)
    assert "criu-late-failure" in {finding.id for finding in result.findings}
    with Image.open(folder / "image") as image:
        image.check_sizes()


def test_a_failure_after_the_commit_takes_the_image_back(tmp_path: Path) -> None:
    """If CRIU lets the tree go on although the image stands, the tree wins."""
    calls = calls_of_a_good_dump(tmp_path)
    host, before = FakeHost.with_job(), FakeHost.with_job()
    host.fault = Fault(calls.index("criu.commit") + 1, "error", "after")
    folder = tmp_path / "late"
    folder.mkdir()
    with pytest.raises(OSError, match="injected"):
        run(host, folder)
    assert_untouched(host, before, folder)


def test_a_child_that_came_late_is_no_remainder(tmp_path: Path) -> None:
    """A script forks all the time: who was frozen counts, not who was looked at before."""
    calls = calls_of_a_good_dump(tmp_path)
    brief, next_one = ROOT_PID + 3, ROOT_PID + 50

    def fork(host: FakeHost) -> None:
        del host.processes[brief]
        host.processes[next_one] = process(next_one, ROOT_PID)
        host.fault = Fault(calls.index("criu.commit") + 1, "error", "after")

    host = FakeHost.with_job()
    host.fault = Fault(calls.index("cuda.checkpoint") + 1, fork, "after")
    folder = tmp_path / "late"
    folder.mkdir()
    with pytest.raises(OSError, match="injected"):
        run(host, folder)
    assert not (folder / "image").exists()
    assert host.processes[next_one].state == "S"
    assert not Journal(folder / "state").entries()


def test_a_good_dump_makes_every_kind_of_call(calls: list[str]) -> None:
    """The matrix is worth something only if the dump really goes through all its tools."""
    assert {
        "host.set_huge_pages",
        "cuda.lock",
        "cuda.checkpoint",
        "criu.dump",
        "proc.devices",
        "nvidia.uses",
    } <= set(calls)
