"""What is read of a job's surroundings: environment, shells above it, units, threads."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuckpt.errors import ToolFailed, ToolMissing
from gpuckpt.tools import threads
from gpuckpt.tools.above import above
from gpuckpt.tools.descriptors import descriptors
from gpuckpt.tools.environment import environment
from gpuckpt.tools.outside import outside
from gpuckpt.tools.run import Finished
from gpuckpt.tools.units import Unit, unit


def test_values_are_read_of_known_settings_only() -> None:
    raw = b"HOME=/root\0NCCL_P2P_DISABLE=1\0AWS_SECRET=x\0RANK=3\0RANK=4\0\xff=1\0NONSENSE\0=y\0"
    found = environment(raw)
    assert found.names == {"HOME", "NCCL_P2P_DISABLE", "AWS_SECRET", "RANK", "\\xff"}
    assert found.settings == {"NCCL_P2P_DISABLE": "1", "RANK": "3"}
    for secret in (b"WANDB_API_KEY", b"HF_TOKEN", b"SLURM_JOB_ID", b"LD_PRELOAD", b"PATH"):
        assert not environment(secret + b"=x").settings


@pytest.mark.parametrize(
    ("cmdline", "wchan", "expected"),
    [
        ("-bash", "do_wait", ("shell", False, False)),
        ("/bin/bash\0-i", "do_wait", ("shell", False, False)),
        ("bash\0run.sh", "do_wait", ("script", True, True)),
        ("/bin/sh\0-e\0plain.sh\0x", "0", ("script", True, False)),
        ("sh\0-c\0python a.py; echo", "poll", ("script", False, False)),
        ("bash\0-lc\0for x; do a; done\nuntil a; do b; done", "do_wait", ("script", True, True)),
        ("sh\0missing.sh", "do_wait", ("script", True, False)),
        ("python\0-c\0while 1: pass", "do_wait", ("", False, False)),
        ("", "do_wait", ("", False, False)),
    ],
)
def test_shells(tmp_path: Path, cmdline: str, wchan: str, expected: tuple[object, ...]) -> None:
    folder = tmp_path / "7"
    (folder / "task" / "7").mkdir(parents=True)
    (folder / "cwd").mkdir()
    (folder / "cmdline").write_text(f"{cmdline}\0" if cmdline else "")
    (folder / "task" / "7" / "wchan").write_text(wchan)
    (folder / "cwd" / "run.sh").write_text("#!/bin/sh\nwhile true; do python train.py; done\n")
    (folder / "cwd" / "plain.sh").write_text("python train.py # meanwhile nothing\n")
    (found,) = above(tmp_path, (7, 8), {7: "x"})
    assert (found.kind, found.waits, found.loops) == expected


class _Systemctl:
    def __init__(self, said: str | Exception) -> None:
        self.said = said
        self.asked: list[tuple[str, ...]] = []

    def run(self, command: Any) -> Finished:
        self.asked.append(command.argv)
        if isinstance(self.said, Exception):
            raise self.said
        return Finished(command.argv, 0, self.said, "", 0.0)


def test_units() -> None:
    tool: Any = _Systemctl("Restart=always\nMainPID=12\n")
    assert unit(tool, ["/system.slice/train.service"]) == Unit("train.service", "always", 12)
    assert tool.asked == [
        ("systemctl", "show", "--property=Restart,MainPID", "--", "train.service")
    ]
    own = "/user.slice/user-7.slice/user@7.service/app.slice/run-r1.service"
    assert unit(tool, ["/", own]) == Unit("run-r1.service", "always", 12)
    assert tool.asked[-1][1:3] == ("--user", "--machine=7@")
    session = ["/user.slice/user-7.slice/session-2.scope", "/user@7.service/init.scope", "/"]
    assert unit(tool, session) is None
    for why in (ToolMissing("x", argv=()), ToolFailed("x", argv=(), returncode=1)):
        assert unit(_Systemctl(why), ["/a.service"]) == Unit("a.service")  # type: ignore[arg-type]
    assert unit(_Systemctl("MainPID=?\n"), ["/a.service"]) == Unit("a.service")  # type: ignore[arg-type]


def test_threads_in_uninterruptible_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STUCK_AFTER", 0.2)

    def write(tid: int, state: str, switches: int) -> None:
        folder = tmp_path / "7" / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        counts = f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n"
        text = f"Name:\tx\nState:\t{state} (z)\nTracerPid:\t5\nSeccomp:\t2\n{counts}"
        (folder / "status").write_text(text)

    for tid in (7, 8, 9):
        write(tid, "D", 3)
    seen = [threads.thread(str(tmp_path / "7"), tid) for tid in (7, 8, 9)]
    sleepers = [(7, one) for one in seen if one is not None]
    assert {(one.tracer, one.seccomp, one.switches) for _, one in sleepers} == {(5, 2, 4)}
    timer = threading.Timer(0.05, lambda: (write(8, "S", 3), write(9, "D", 4)))
    timer.start()
    found = threads.stuck(tmp_path, sleepers)
    timer.join()
    assert [one.tid for one in found[7]] == [7]
    assert threads.stuck(tmp_path, []) == {}


def test_threads_of_this_process_share_everything() -> None:
    folder = f"/proc/{os.getpid()}"
    ready, over = threading.Event(), threading.Event()

    def stay() -> None:
        ready.set()
        over.wait()

    other = threading.Thread(target=stay)
    other.start()
    try:
        assert ready.wait(20)
        tids = [int(name) for name in os.listdir(f"{folder}/task")]  # noqa: PTH208
        assert len(tids) > 1
        assert threads.apart(folder, os.getpid(), tids) == ()
    finally:
        over.set()
        other.join()


def test_names_of_own_sockets_are_told_without_the_zeros_that_pad_them() -> None:
    """NCCL binds all 108 bytes of the address, of which the last ones are zeros."""
    name = f"tmp/nccl-socket-1-{os.getpid():x}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(b"\0" + name.encode().ljust(107, b"\0"))
        me = os.getpid()
        ends = outside(Path("/proc"), [(me, descriptors(f"/proc/{me}"))], {})
    assert (me, f"@{name}") in ends.bound
