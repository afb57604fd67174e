"""From a CUDA process up to the root of its job, over process tables as they occur."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import CudaCallFailed, NotPrivileged
from gpuckpt.flow import jobs
from gpuckpt.flow.work import kin
from gpuckpt.model import (
    CudaOutcome,
    CudaState,
    DeviceUse,
    GpuUse,
    NvidiaFacts,
    Process,
    ProcessRef,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TTY = 0x8803


def process(
    pid: int, ppid: int, pgid: int, sid: int, argv: str, *, tty: int = 0, comm: str = ""
) -> Process:
    words = tuple(argv.split())
    name = comm or words[0].rpartition("/")[2].lstrip("-")
    return Process(
        ref=ProcessRef(pid, pid),
        ppid=ppid,
        pgid=pgid,
        sid=sid,
        state="S",
        threads=(pid,),
        comm=name[:15],
        argv=words,
        exe="",
        cwd="/",
        uid=0,
        gid=0,
        rss=0,
        tty=tty,
    )


def table(*processes: Process) -> dict[int, Process]:
    return {one.pid: one for one in (process(1, 0, 1, 1, "init", comm="systemd"), *processes)}


SHELL = process(100, 90, 100, 100, "-bash", tty=TTY)
SSHD = process(90, 1, 90, 90, "sshd: user@pts/3")
CASES = {
    "typed into a shell": (
        table(SSHD, SHELL, process(200, 100, 200, 100, "python train.py", tty=TTY)),
        200,
    ),
    "a script typed into a shell": (
        table(
            SSHD,
            SHELL,
            process(200, 100, 200, 100, "bash run.sh", tty=TTY),
            process(201, 200, 200, 100, "python train.py", tty=TTY),
            process(202, 201, 200, 100, "python worker", tty=TTY),
        ),
        200,
    ),
    "a shell without job control": (
        table(SHELL, process(200, 100, 100, 100, "python train.py", tty=TTY)),
        200,
    ),
    "a shell inside a shell": (
        table(
            SHELL,
            process(110, 100, 110, 100, "bash", tty=TTY),
            process(200, 110, 200, 100, "python train.py", tty=TTY),
        ),
        200,
    ),
    "a login shell run by name": (
        table(
            process(100, 90, 100, 100, "/usr/bin/zsh -il", tty=TTY),
            process(200, 100, 100, 100, "python train.py", tty=TTY),
        ),
        200,
    ),
    "ssh host command, with a terminal": (
        table(
            SSHD,
            process(100, 90, 100, 100, "bash -c ./run", tty=TTY),
            process(200, 100, 100, 100, "python train.py", tty=TTY),
        ),
        100,
    ),
    "nohup and setsid from a shell": (
        table(SHELL, process(200, 1, 200, 200, "python train.py")),
        200,
    ),
    "a systemd unit": (
        table(
            process(200, 1, 200, 200, "/bin/sh /opt/start"),
            process(201, 200, 200, 200, "python serve.py"),
        ),
        200,
    ),
    "a slurm batch job": (
        table(
            process(50, 1, 50, 50, "slurmstepd: [7.batch]", comm="slurmstepd"),
            process(200, 50, 200, 200, "/bin/bash /var/spool/slurm/script"),
            process(201, 200, 200, 200, "python train.py"),
        ),
        200,
    ),
    "a container": (
        table(
            process(50, 1, 50, 1, "containerd-shim-runc-v2 -id x", comm="containerd-shim"),
            process(200, 50, 200, 200, "tini -- python serve.py"),
            process(201, 200, 201, 200, "python serve.py"),
        ),
        200,
    ),
    "tmux": (
        table(
            process(80, 1, 80, 80, "tmux new", comm="tmux: server"),
            process(100, 80, 100, 100, "-zsh", tty=TTY),
            process(200, 100, 200, 100, "python train.py", tty=TTY),
        ),
        200,
    ),
    "the parent is not to be seen": (table(process(200, 150, 200, 200, "python train.py")), 200),
}


@pytest.mark.parametrize("name", CASES)
def test_the_root_of_a_job(name: str) -> None:
    processes, root = CASES[name]
    assert kin.climb(processes, max(processes)) == root


@pytest.mark.parametrize("name", CASES)
def test_nobodys_shell_is_ever_a_root(name: str) -> None:
    processes, _ = CASES[name]
    found = {kin.climb(processes, pid) for pid in processes if pid >= 200}
    assert not found & {1, 50, 80, 90}
    assert not {pid for pid in found if processes[pid].command in {"-bash", "bash", "-zsh"}}


def test_workers_of_one_launcher_are_one_job() -> None:
    """Torchrun has a CUDA context of its own, and gives every worker a session."""
    processes = table(
        SHELL,
        process(200, 100, 200, 100, "torchrun train.py", tty=TTY),
        process(201, 200, 201, 201, "python train.py"),
        process(202, 200, 202, 202, "python train.py"),
        process(300, 1, 300, 300, "python serve.py"),
    )
    found = jobs.group(processes, {200: 0, 201: 5, 202: 6, 300: 7})
    assert [(job.root.pid, job.cuda_pids, job.gpu_bytes) for job in found] == [
        (200, (200, 201, 202), 11),
        (300, (300,), 7),
    ]


def test_a_process_that_is_gone_is_no_job() -> None:
    assert jobs.group(table(), {200: 5}) == ()


class FakeHost:
    """The tools `jobs` asks, over one table."""

    def __init__(self, processes: Mapping[int, Process], held: Mapping[int, int]) -> None:
        self.table, self.held = processes, held
        self.proc = self.nvidia = self.cuda = self
        self.driver: NvidiaFacts | None = NvidiaFacts("580", "13.0", ())
        self.closed: set[int] = set()
        self.host = SimpleNamespace(facts=lambda: SimpleNamespace(euid=self.euid))
        self.euid = 0

    def facts(self) -> NvidiaFacts | None:
        return self.driver

    def pids(self) -> tuple[int, ...]:
        return tuple(self.table)

    def process(self, pid: int) -> Process | None:
        return self.table.get(pid)

    def ancestors(self, pid: int) -> tuple[int, ...]:
        above = []
        while pid in self.table and (pid := self.table[pid].ppid):
            above.append(pid)
        return tuple(above)

    def uses(self, pids: Iterable[int]) -> tuple[GpuUse, ...]:
        return tuple(GpuUse(pid, "GPU-1", self.held[pid]) for pid in pids if self.held.get(pid))

    def devices(self, pids: Iterable[int]) -> tuple[DeviceUse, ...]:
        listed = set(pids)
        if self.closed & listed:
            raise NotPrivileged("the open files of a process may not be read")
        held = (
            DeviceUse(201, 5, "/dev/nvidia0"),
            DeviceUse(202, None, "/dev/nvidia-uvm"),
            DeviceUse(203, 7, "/dev/nvidiactl"),
            DeviceUse(204, 7, "/dev/nvidiactl"),
        )
        return tuple(use for use in held if use.pid in listed)

    def states(self, pids: Sequence[int]) -> dict[int, CudaState]:
        return {pid: CudaState.NONE if pid == 203 else CudaState.RUNNING for pid in pids}


def test_the_driver_has_the_last_word_on_what_is_a_gpu_process() -> None:
    processes = table(
        process(200, 1, 200, 200, "python train.py"),
        process(201, 1, 201, 201, "python idle.py"),
        process(202, 1, 202, 202, "python none.py"),
        process(203, 1, 203, 203, "nvidia-smi dmon"),
    )
    host = FakeHost(processes, {200: 5})
    found = jobs.jobs(host)  # type: ignore[arg-type]
    assert [(job.root.pid, job.gpu_bytes) for job in found] == [(200, 5), (201, 0)]


def test_a_process_that_does_not_answer_is_listed_and_hides_nobody() -> None:
    processes = table(
        process(200, 1, 200, 200, "python train.py"),
        process(201, 1, 201, 201, "python hangs.py"),
        process(202, 1, 202, 202, "python gone.py"),
    )
    host = FakeHost(processes, {200: 5, 201: 6, 202: 7})

    def states(pids: Sequence[int]) -> dict[int, CudaState]:
        assert {200, 201, 202} <= set(pids)
        raise CudaCallFailed(
            "state",
            (
                CudaOutcome(200, "state", after=CudaState.RUNNING),
                CudaOutcome(201, "state", error="NO_ANSWER"),
                CudaOutcome(202, "state", error="GONE", gone=True),
                CudaOutcome(203, "state", after=CudaState.NONE),
            ),
        )

    host.states = states  # type: ignore[method-assign]
    assert [job.root.pid for job in jobs.jobs(host)] == [200, 201]  # type: ignore[arg-type]


def test_without_a_driver_nobody_is_asked_anything() -> None:
    host = FakeHost(table(), {})
    host.driver = None
    host.proc = None  # type: ignore[assignment]
    assert jobs.jobs(host) == ()  # type: ignore[arg-type]


def test_one_that_not_even_root_may_look_into_hides_nobody() -> None:
    host = FakeHost(
        table(
            process(1, 0, 1, 1, "init"),
            process(200, 1, 200, 200, "python train.py"),
            process(201, 1, 201, 201, "python idle.py"),
        ),
        {200: 5},
    )
    host.closed = {1}
    assert [job.root.pid for job in jobs.jobs(host)] == [200, 201]  # type: ignore[arg-type]
    host.euid = 1000
    with pytest.raises(NotPrivileged):
        jobs.jobs(host)  # type: ignore[arg-type]


def test_what_makes_the_driver_calls_is_no_job() -> None:
    command = "python -P -m gpuckpt.tools.cuda_helper"
    host = FakeHost(table(process(204, 1, 204, 204, command)), {})
    assert jobs.jobs(host) == ()  # type: ignore[arg-type]


def test_what_runs_gpuckpt_is_no_part_of_a_job() -> None:
    """A runbook that has started the job in the background shares its session with it."""
    me = os.getpid()
    host = FakeHost(
        table(
            process(300, 1, 300, 300, "bash runbook.sh"),
            process(200, 300, 300, 300, "python train.py"),
            process(me, 300, 300, 300, "gpuckpt jobs"),
        ),
        {200: 5, me: 1},
    )
    assert [job.root.pid for job in jobs.jobs(host)] == [200]  # type: ignore[arg-type]
