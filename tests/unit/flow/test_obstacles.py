"""What cannot be looked at is told beside everything else, and nothing is asked in vain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from gpuckpt.cli import plan
from gpuckpt.cli.page import Next
from gpuckpt.errors import (
    CudaCallFailed,
    DriverUnfit,
    ImageExists,
    NoSuchProcess,
    NotWritable,
    Unfinished,
)
from gpuckpt.events import Silent
from gpuckpt.flow.outlook import outlook
from gpuckpt.flow.request import DumpRequest
from gpuckpt.flow.sight.look import look
from gpuckpt.flow.sight.obstacles import cuda_states, destination
from gpuckpt.flow.sight.plan import IGNORABLE, judge_dump, refusal
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.model import CudaOutcome, CudaState, ProcessRef, Severity
from gpuckpt.tools.destination import Place
from tests.fakes.host import ROOT_PID, FakeHost, NoCriu
from tests.plan_samples import cuda_facts, facts, process


def driver(failure: Exception) -> Any:
    """Return tools whose driver answers with an error."""

    def states(_pids: object) -> dict[int, CudaState]:
        raise failure

    proc = SimpleNamespace(cuda_candidates=list, process=process)
    return SimpleNamespace(proc=proc, cuda=SimpleNamespace(states=states))


def test_a_process_that_does_not_answer_hides_no_other() -> None:
    told = CudaCallFailed(
        "state",
        [
            CudaOutcome(1, "state", after=CudaState.RUNNING),
            CudaOutcome(2, "state", "NO_ANSWER"),
            CudaOutcome(3, "state", "GONE", gone=True),
        ],
    )
    states, (found,) = cuda_states(driver(told), [1, 2, 3])
    assert states == {1: CudaState.RUNNING}
    assert (found.id, found.pid, found.blocks) == ("gpu-unanswered", 2, True)
    assert found.reason.endswith(".")


def test_a_driver_that_cannot_be_reached_is_a_finding() -> None:
    states, (found,) = cuda_states(driver(DriverUnfit("no libcuda", hint="Install it.")), [1])
    assert states == {}
    assert (found.id, found.reason, found.remedy) == ("driver-unfit", "No libcuda.", "Install it.")
    assert isinstance(refusal([found]), DriverUnfit)


def test_a_filesystem_that_does_not_answer() -> None:
    def stale(_folder: Path) -> int:
        raise OSError(116, "Stale file handle")

    tools: Any = SimpleNamespace(host=SimpleNamespace(free_bytes=stale))
    free, place, (found,) = destination(tools, Path("/ckpt"))
    assert (free, place) == (None, None)
    assert "Stale file handle" in found.reason
    assert isinstance(refusal([found]), NotWritable)


def test_one_look_sees_it_all(tmp_path: Path) -> None:
    """No CRIU, a name that is taken, and a process that the driver gave up: all three."""
    host = FakeHost.with_job()
    host.cuda[ROOT_PID + 1] = CudaState.FAILED
    tools: Any = replace(host.toolbox(tmp_path), criu=NoCriu())
    (tmp_path / "image").mkdir()
    sight = look(tools, DumpRequest(ROOT_PID, tmp_path / "image"))
    stopping = [one.id for one in sight.findings if one.blocks]
    assert {"criu-missing", "image-exists", "gpu-failed"} <= set(stopping)
    assert str(sight.criu) == "0"


def test_an_image_is_no_place_for_another(tmp_path: Path) -> None:
    tools, image = FakeHost.with_job().toolbox(tmp_path), tmp_path / "image"
    request = DumpRequest(ROOT_PID, image / "again")
    image.mkdir()
    (image / "manifest.json").write_text("{}")  # of a web page, say
    assert not [one for one in look(tools, request).findings if one.id == "image-exists"]
    (image / "criu").mkdir()
    (found,) = (one for one in look(tools, request).findings if one.id == "image-exists")
    assert f"in the image {image}" in found.reason
    assert found.blocks


def test_only_what_is_not_there_ends_a_look(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    with pytest.raises(NoSuchProcess):
        look(host.toolbox(tmp_path), DumpRequest(ROOT_PID + 999))


def test_a_plan_calls_nothing_that_changes_anything(tmp_path: Path) -> None:
    host, before = FakeHost.with_job(), FakeHost.with_job()
    request = DumpRequest(ROOT_PID, tmp_path / "image")
    told = outlook(host.toolbox(tmp_path / "state"), request, Silent())
    assert told.error is None
    assert [row.role for row in told.rows] == ["plain", "CUDA", "CUDA", "plain"]
    assert host.processes == before.processes
    asked = {call for call in host.calls if call.startswith(("cuda.", "criu.", "cpus.", "shell."))}
    assert asked == {"cuda.states"}
    assert not list(tmp_path.iterdir())


def test_what_an_earlier_run_left_is_told_with_the_rest(tmp_path: Path) -> None:
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path / "state")
    away = ROOT_PID + 1
    dead = Entry(
        id="dead",
        operation="dump",
        started="2026-01-01T00:00:00Z",
        boot_id="boot",
        owner=ProcessRef(999_999, 1),
        image="/image",
        processes=(host.processes[away].ref,),
        first={away: CudaState.RUNNING},
    )
    Journal(tmp_path / "state").open(dead, lambda _ref: True)
    request = DumpRequest(ROOT_PID, tmp_path / "image")
    assert outlook(tools, request, Silent()).error is None  # nothing is left but files
    host.cuda[away] = CudaState.CHECKPOINTED
    told = outlook(tools, request, Silent())
    assert isinstance(told.error, Unfinished)
    first = told.sight.findings[0]
    assert (first.id, first.blocks) == ("unfinished", True)
    assert str(away) in first.reason
    assert "gpuckpt repair" in first.remedy
    assert plan.outcome(told).page.blocks[-1] == Next((f"gpuckpt repair {ROOT_PID}",))
    # one that is stopped with its GPU state away dies of a SIGCONT, which must not be advised
    host.processes[away] = replace(host.processes[away], state="T")
    parked = structs.replace(dead, step="checkpoint", threads={away: away + 1000})
    Journal(tmp_path / "state").open(parked, lambda _ref: False)
    told = outlook(tools, request, Silent())
    assert "left process" in told.sight.findings[0].reason
    assert "stopped" not in {one.id for one in told.sight.findings}


def test_the_host_s_own_troubles() -> None:
    known = facts(
        taken=True,
        output=Path("/ckpt/image"),
        state_dir=Path("/var/lib/x"),
        state_writable=False,
        state_executes=False,
        place=Place("nfs4", "/ckpt", network=True, free_inodes=10),
    )
    found = {one.id: one for one in judge_dump(known, DumpChoices())}
    wanted = {"image-exists", "inodes", "not-writable", "destination-network", "state-noexec"}
    assert set(found) == wanted
    assert "mounted noexec" in found["state-noexec"].reason
    assert not found["destination-network"].blocks
    error = refusal([found["image-exists"]])
    assert isinstance(error, ImageExists)
    assert error.exit_code == 2


def test_what_may_be_ignored_says_when_that_makes_sense() -> None:
    assert all(IGNORABLE.values())


def test_an_ignored_blocker_warns() -> None:
    tight = cuda_facts(memory_available=1, free_bytes=1)
    ignore = frozenset({"memory-host", "io-uring"})
    found = {one.id: one.severity for one in judge_dump(tight, DumpChoices(ignore=ignore))}
    assert found == {"space": Severity.BLOCKER, "memory-host": Severity.WARNING}
