"""Jobs that are brought to rest at a step: dumped, rehearsed, restored, refused, put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import (
    Blocked,
    Bug,
    GpuckptError,
    ProcessLost,
    QuiesceFailed,
    QuiesceTimeout,
    UndoIncomplete,
    VerificationFailed,
)
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.gpu import sameness
from gpuckpt.flow.rehearse import rehearse, verdict
from gpuckpt.flow.repair import RepairRequest, repair
from gpuckpt.flow.request import DumpRequest, RehearseRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.status import status
from gpuckpt.flow.work import quiescing
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.journal import Journal
from gpuckpt.image.sealed import decode, encode
from gpuckpt.image.store import Image
from gpuckpt.model import CudaState, Severity
from gpuckpt.tools.cooperation import LINK
from gpuckpt.tools.descriptors import Descriptor
from tests.fakes.host import ROOT_PID, FakeHost, FakeRank, Fault
from tests.plan_samples import cuda_facts, process, task

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.request import DumpResult

CALM = Interrupts()
RANKS = (ROOT_PID + 1, ROOT_PID + 2)
PAGE = Descriptor(9, LINK, "file", deleted=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiescing, "GO_ON_SECONDS", 0.05)
    monkeypatch.setattr(quiescing, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(sameness, "WATCH_SECONDS", 0.0)


def job(**changes: Any) -> FakeHost:
    """Return a host with two ranks, of which the second is special."""
    host = FakeHost.with_job()
    host.ranks = {RANKS[0]: FakeRank(step=8), RANKS[1]: FakeRank(**changes)}
    return host


def run(host: FakeHost, folder: Path, **changes: Any) -> DumpResult:
    (folder / "state").mkdir(exist_ok=True)
    request = DumpRequest(ROOT_PID, folder / "image", quiesce=True, quiesce_timeout=0.05)
    tools = host.toolbox(folder / "state")
    return dump(tools, replace(request, **changes), Silent(), CALM)


def at_large(host: FakeHost) -> bool:
    """Whether the job runs, none of it at a step."""
    quiet = any(one.arrived or one.quiet for one in host.ranks.values())
    return not quiet and set(host.cuda.values()) == {CudaState.RUNNING}


def test_a_dump_at_rest_and_its_restore(tmp_path: Path) -> None:
    host = job()
    result = run(host, tmp_path)
    names = [one.name for one in result.receipt.phases]
    assert names[:5] == ["look", "inputs", "quiesce", "look again", "prepare"]
    assert result.manifest.quiesced == RANKS
    assert "quiesced" in result.manifest.needs
    assert [one.stops for one in host.ranks.values()] == [1, 1]
    before = FakeHost.with_job()
    host.restored = {pid: one for pid, one in before.processes.items() if pid >= ROOT_PID}
    back = restore(
        host.toolbox(tmp_path / "state"),
        RestoreRequest(tmp_path / "image", settle=0.0),
        Silent(),
        CALM,
    )
    assert "resume" in [one.name for one in back.receipt.phases]
    assert at_large(host)


def test_a_dump_that_leaves_the_job_running(tmp_path: Path) -> None:
    host = job()
    result = run(host, tmp_path, leave_running=True)
    assert at_large(host)
    assert [one.name for one in result.receipt.phases if not one.inside][-3:] == [
        "gpu-in",
        "resume",
        "write",
    ]
    assert not result.findings


def test_who_does_not_go_on_is_told_of(tmp_path: Path) -> None:
    """After the image stands it is a warning; the restore of it fails its look."""
    host = job(stuck=True)
    result = run(host, tmp_path, leave_running=True)
    assert [(one.id, one.pid, one.blocks) for one in result.findings] == [
        ("rank-waits", RANKS[1], False)
    ]
    host.processes = {pid: one for pid, one in host.processes.items() if pid < ROOT_PID}
    host.cuda.clear()
    before = FakeHost.with_job()
    host.restored = {pid: one for pid, one in before.processes.items() if pid >= ROOT_PID}
    request = RestoreRequest(tmp_path / "image", settle=0.0)
    with pytest.raises(VerificationFailed, match="was told to go on after step 9"):
        restore(host.toolbox(tmp_path / "state"), request, Silent(), CALM)


def test_a_rank_that_does_not_arrive_is_named(tmp_path: Path) -> None:
    host = job(late=True)
    with pytest.raises(QuiesceTimeout, match=f"process {RANKS[1]} is at step 5") as caught:
        run(host, tmp_path)
    assert caught.value.exit_code == 5
    assert "--quiesce-timeout" in caught.value.hint
    assert at_large(host)
    assert not Journal(tmp_path / "state").entries()
    assert not (tmp_path / "image").exists()
    assert "cuda.lock" not in host.calls


def test_a_callback_that_fails_tells_why(tmp_path: Path) -> None:
    host = job(fails="RuntimeError: the well is dry")
    with pytest.raises(QuiesceFailed, match="down: RuntimeError: the well is dry") as caught:
        run(host, tmp_path)
    assert caught.value.exit_code == 5
    assert at_large(host)


def test_a_job_that_does_not_go_on_again_is_not_put_back(tmp_path: Path) -> None:
    host = job(late=True)
    host.ranks[RANKS[0]].stuck = True
    with pytest.raises(UndoIncomplete, match=f"{RANKS[0]} was told to go on"):
        run(host, tmp_path)


def test_a_job_at_rest_that_still_cannot_be_dumped_goes_on(tmp_path: Path) -> None:
    """What did not go away with `down` is found by the second look, at the latest."""
    host = job()
    tools = host.toolbox(tmp_path / "state")
    (tmp_path / "state").mkdir()
    packets = Descriptor(3, "pipe:[1]", "pipe", 1, writes=True, trait="packets")

    class Stubborn:
        def look(self, tree: Any) -> Any:
            seen = tools.proc.look(tree)
            tasks = (
                replace(one, descriptors=(*one.descriptors, packets)) if one.cooperates else one
                for one in seen.tasks
            )
            return replace(seen, tasks=tuple(tasks))

        def __getattr__(self, name: str) -> Any:
            return getattr(tools.proc, name)

    request = DumpRequest(ROOT_PID, tmp_path / "image", quiesce=True)
    stubborn: Any = Stubborn()
    with pytest.raises(QuiesceFailed, match="even at rest") as caught:
        dump(replace(tools, proc=stubborn), request, Silent(), CALM)
    assert "pipe-packets" in {one.id for one in caught.value.findings}
    assert [one.stops for one in host.ranks.values()] == [1, 1]
    assert at_large(host)
    plain = replace(request, quiesce=False)
    with pytest.raises(Blocked):
        dump(replace(tools, proc=stubborn), plain, Silent(), CALM)


def test_a_rank_that_leaves_its_rest_is_noticed(tmp_path: Path) -> None:
    host = job()
    tools = host.toolbox(tmp_path / "state")
    (tmp_path / "state").mkdir()
    looks = 0

    class Restless:
        def look(self, tree: Any) -> Any:
            nonlocal looks
            looks += 1
            if looks == 2:
                host.ranks[RANKS[1]].quiet = 0
            return tools.proc.look(tree)

        def __getattr__(self, name: str) -> Any:
            return getattr(tools.proc, name)

    restless: Any = Restless()
    request = DumpRequest(ROOT_PID, tmp_path / "image", quiesce=True)
    with pytest.raises(QuiesceFailed, match="has gone on by itself"):
        dump(replace(tools, proc=restless), request, Silent(), CALM)
    assert at_large(host)


@pytest.mark.parametrize("call", ["cuda.checkpoint", "criu.dump"])
def test_a_rank_without_a_gpu_that_ends_at_rest(tmp_path: Path, call: str) -> None:
    """An image without it would be of a job that waits for it in vain."""

    def plain() -> FakeHost:
        host = job()
        host.ranks[ROOT_PID + 3] = FakeRank(step=8)
        return host

    def end(host: FakeHost) -> None:
        del host.processes[ROOT_PID + 3], host.ranks[ROOT_PID + 3]

    good = plain()
    (tmp_path / "good").mkdir()
    run(good, tmp_path / "good")
    host = plain()
    host.fault = Fault(good.calls.index(call) + 1, end, "before")
    with pytest.raises(ProcessLost, match=f"process {ROOT_PID + 3} ended while a dump"):
        run(host, tmp_path)
    assert at_large(host)
    assert not (tmp_path / "image").exists()


@pytest.mark.parametrize("real", [False, True])
def test_a_rehearsal_at_rest(tmp_path: Path, *, real: bool) -> None:
    host = job()
    (tmp_path / "state").mkdir()
    what = DumpRequest(ROOT_PID, tmp_path / "image", quiesce=True)
    request = RehearseRequest(what, settle=0.0, real=real)
    result = rehearse(host.toolbox(tmp_path / "state"), request, Silent(), CALM)
    assert verdict(result) is None
    assert {"quiesce", "resume"} <= {one.name for one in result.receipt.phases}
    assert [one.stops for one in host.ranks.values()] == [1, 1]
    assert at_large(host)


def test_nobody_cooperates(tmp_path: Path) -> None:
    with pytest.raises(GpuckptError) as caught:
        run(FakeHost.with_job(), tmp_path)
    assert caught.value.exit_code == 4
    assert [one.id for one in caught.value.findings] == ["no-cooperation"]


def test_a_quiet_rank_without_a_journal_is_let_go_on_by_name(tmp_path: Path) -> None:
    """An image that some other tool restored, or a journal that is lost."""
    host = job()
    for one in host.ranks.values():
        one.arrived = one.quiet = one.confirmed = 9
    tools = host.toolbox(tmp_path / "state")
    (tmp_path / "state").mkdir()
    assert {one.state for one in status(tools, ROOT_PID).job} == {"runs", "stands at a step"}
    would = repair(tools, RepairRequest(ROOT_PID, dry_run=True), Silent(), CALM)
    assert [one.pid for one in would.done] == list(RANKS)
    assert not at_large(host)
    done = repair(tools, RepairRequest(ROOT_PID), Silent(), CALM)
    assert [one.text for one in done.done] == ["it stood at a step and goes on"] * 2
    assert at_large(host)


def test_who_stands_already_is_not_asked_again(tmp_path: Path) -> None:
    host = job(arrived=9, quiet=9, confirmed=9)
    with pytest.raises(QuiesceFailed, match="stands at step 5 already") as caught:
        run(host, tmp_path)
    assert f"gpuckpt repair {RANKS[1]}" in caught.value.hint


def test_the_manifest_names_only_its_own(tmp_path: Path) -> None:
    run(job(), tmp_path)
    with Image.open(tmp_path / "image") as image:
        manifest = image.manifest
    assert decode(encode(manifest)) == manifest
    with pytest.raises(Bug, match="process 1 is not in its tree"):
        encode(msgspec.structs.replace(manifest, quiesced=(1,)))


GROUP = frozenset({"python3", "pt_nccl_watchdg", "pt_nccl_heartbt"})


def ranks_of(*names: frozenset[str], cooperate: tuple[bool, bool] = (True, True)) -> Any:
    tasks = [
        replace(
            task(process(pid, 100 if pid > 100 else 1)),
            settings={"WORLD_SIZE": "2", "RANK": str(rank)},
            thread_names=names[rank],
            descriptors=(PAGE,) if cooperate[rank] else (),
        )
        for rank, pid in enumerate((100, 110))
    ]
    states = {100: CudaState.RUNNING, 110: CudaState.RUNNING}
    return cuda_facts(look={"tasks": tuple(tasks)}, states=states)


def judged(known: Any, **choices: Any) -> dict[str, Severity]:
    found = judge_dump(known, DumpChoices(**choices))
    return {one.id: one.severity for one in found}


def test_nccl_stops_a_dump_only_while_there_is_a_group() -> None:
    living, away = ranks_of(GROUP, GROUP), ranks_of(frozenset(), frozenset())
    assert judged(living)["nccl"] is Severity.BLOCKER
    (told,) = (one for one in judge_dump(living, DumpChoices()) if one.id == "nccl")
    assert told.remedy.startswith("Dump it with --quiesce")
    assert judged(living, quiesce=True)["nccl"] is Severity.WARNING
    assert judged(living, quiesce=True, quiesced=True)["nccl"] is Severity.BLOCKER
    assert "nccl" not in judged(away, quiesce=True, quiesced=True)
    mixed = ranks_of(GROUP, GROUP, cooperate=(True, False))
    assert judged(mixed, quiesce=True)["rank-uncooperative"] is Severity.BLOCKER
