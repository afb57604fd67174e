"""Which pid is meant: parts of jobs and what stands above jobs are told from jobs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import NotPrivileged
from gpuckpt.flow.sight.plan import judge_dump
from gpuckpt.flow.sight.rules.rule import DumpChoices
from gpuckpt.flow.work.kin import Kin, kin, roots_below, starts_jobs
from gpuckpt.model import Finding, Process, Severity, Tree
from tests.plan_samples import cuda_facts, facts, process

if TYPE_CHECKING:
    from collections.abc import Iterable

SHELL = process(50, comm="bash", argv=("-bash",), tty=34817, pgid=50, sid=50)


def torchrun(*, gpu: Iterable[int] = (100, 110, 120)) -> Any:
    """Return tools that see a launcher with two ranks in sessions of their own, from a shell."""
    listed = [
        SHELL,
        process(100, 50, comm="torchrun", sid=50, pgid=100),
        process(110, 100, comm="python", sid=110, pgid=110),
        process(120, 100, comm="python", sid=120, pgid=120),
    ]
    return tools(listed, gpu)


def tools(listed: list[Process], gpu: Iterable[int]) -> Any:
    known = {one.pid: one for one in listed}

    def ancestors(pid: int) -> tuple[int, ...]:
        if pid == os.getpid() or pid not in known:
            return ()
        above = known[pid].ppid
        return (above, *ancestors(above))

    def tree(pid: int) -> Tree:
        found = [known[pid]]
        for one in found:
            found += [other for other in listed if other.ppid == one.pid]
        return Tree(tuple(found))

    holders = set(gpu)
    proc = SimpleNamespace(
        ancestors=ancestors,
        process=known.get,
        tree=tree,
        cuda_candidates=lambda pids: [pid for pid in pids if pid in holders],
    )
    return SimpleNamespace(proc=proc)


def test_a_rank_is_a_part_of_its_launcher_s_job() -> None:
    known = torchrun()
    found = kin(known, known.proc.tree(110))
    assert found.job is not None
    assert (found.job.pid, found.on_gpu) == (100, (100, 120))


def test_a_whole_job_is_no_part_of_anything() -> None:
    known = torchrun()
    assert kin(known, known.proc.tree(100)) == Kin()
    assert kin(known, known.proc.tree(50)) == Kin()


def test_a_script_s_child_is_a_part_of_the_script_s_job() -> None:
    listed = [
        process(60, comm="bash", argv=("bash", "run.sh"), pgid=60, sid=60),
        process(61, 60, pgid=60, sid=60),
    ]
    known = tools(listed, ())
    found = kin(known, known.proc.tree(61))
    assert found.job is listed[0]
    assert found.on_gpu == ()


def test_who_may_not_look_at_others_is_not_stopped() -> None:
    known = torchrun()

    def refuse(_pids: object) -> list[int]:
        raise NotPrivileged("no")

    known.proc.cuda_candidates = refuse
    assert kin(known, known.proc.tree(110)) == Kin()


def judged(known: Any, **choices: Any) -> list[Finding]:
    return [one for one in judge_dump(known, DumpChoices(**choices)) if "root-too" in one.id]


def test_one_rank_alone_is_not_dumped() -> None:
    job = process(40, comm="torchrun")
    (found,) = judged(cuda_facts(kin=Kin(job, (120, 130))))
    assert (found.id, found.blocks, found.pid) == ("root-too-low", True, 100)
    assert "2 other processes" in found.reason
    assert "process 40" in found.remedy
    (found,) = judged(cuda_facts(kin=Kin(job, (120,))), ignore=frozenset({"root-too-low"}))
    assert found.severity is Severity.WARNING
    (found,) = judged(facts(kin=Kin(job)))
    assert found.severity is Severity.WARNING
    assert facts(kin=Kin(job)).better_roots == (40,)
    # in place it only stops for a moment
    (found,) = judged(cuda_facts(kin=Kin(job, (120,))), rehearsal=True)
    assert found.severity is Severity.WARNING


def test_a_shell_above_jobs_is_not_dumped_and_its_jobs_are_named() -> None:
    first, second = process(100, 50, pgid=100, sid=50), process(200, 50, pgid=200, sid=50)
    worker = process(201, 200, pgid=200, sid=50)
    (found,) = judged(facts(SHELL, first, second, worker))
    assert (found.id, found.blocks, found.pid) == ("root-too-high", True, 50)
    assert "process 100, 200." in found.remedy
    (found,) = judged(facts(SHELL, first))
    assert "job below it: process 100" in found.remedy
    (found,) = judged(facts(SHELL))
    assert "no job below" in found.remedy


def test_what_else_would_stop_a_dump_of_a_shell_is_no_matter() -> None:
    """What the host lacks stays: the jobs below need it too."""
    first = process(100, 50, pgid=100, sid=50)
    known = facts(replace(SHELL, state="T"), first, state_writable=False)
    found = judge_dump(known, DumpChoices())
    assert [one.id for one in found] == ["root-too-high", "not-writable"]
    forced = judge_dump(known, DumpChoices(ignore=frozenset({"root-too-high"})))
    assert {"stopped", "not-writable"} <= {one.id for one in forced if one.blocks}


def test_of_many_jobs_those_on_a_gpu_are_named() -> None:
    first, second = process(100, 50, pgid=100, sid=50), process(200, 50, pgid=200, sid=50)
    assert roots_below((SHELL, first, second), (200,)) == (200,)
    assert roots_below((SHELL, first, second)) == (100, 200)


def test_what_starts_jobs() -> None:
    assert starts_jobs(SHELL)
    assert starts_jobs(process(5, comm="tmux: server"))
    assert starts_jobs(process(5, comm="sshd"))
    assert starts_jobs(process(5, comm="gpuckpt-init"))
    assert not starts_jobs(process(5, comm="bash", argv=("bash", "run.sh"), tty=5))
    assert not starts_jobs(process(5, comm="torchrun"))


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("/opt/gpuckpt/venv/bin/python /opt/gpuckpt/venv/bin/gpuckpt run -- ./job", True),
        ("python3 -P -m gpuckpt restore /ckpt/job --wait", True),
        ("gpuckpt run -- ./job", True),
        ("python3 train.py gpuckpt", False),
        ("./wrapper gpuckpt run -- ./job", False),
    ],
)
def test_a_gpuckpt_that_waits_is_no_part_of_the_job(line: str, *, starts: bool) -> None:
    assert starts_jobs(process(50, argv=tuple(line.split()))) is starts
