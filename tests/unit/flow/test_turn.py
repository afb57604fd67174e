"""Who needs CRIU's names waits for his turn."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.errors import Interrupted, NotWritable, ProcessUnfit
from gpuckpt.events import Silent
from gpuckpt.flow.work import turn as turn_room
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.turn import turn
from gpuckpt.tools.locks import FileLock
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path


def test_one_after_the_other(tmp_path: Path) -> None:
    tools = FakeHost().toolbox(tmp_path / "state")
    first = Operation.begin("dump", tools, Silent(), Interrupts())
    second = Operation.begin("restore", tools, Silent(), Interrupts())
    with turn(first, needed=True):
        with turn(second, needed=False):
            pass
        second.interrupts.request(15)
        with pytest.raises(Interrupted), turn(second, needed=True):
            pytest.fail("both at once")
    second.interrupts.take()
    with turn(second, needed=True) as waited:
        assert not waited


def test_who_has_waited_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = FakeHost().toolbox(tmp_path / "state")
    first, second = (Operation.begin("dump", tools, Silent(), Interrupts()) for _ in range(2))
    held = ExitStack()
    held.enter_context(turn(first, needed=True))
    monkeypatch.setattr(time, "sleep", lambda _: held.close())
    with turn(second, needed=True) as waited:
        assert waited


def test_the_names_are_those_of_the_host_not_of_a_state_directory(tmp_path: Path) -> None:
    tools = [
        replace(FakeHost().toolbox(tmp_path / name), run_dir=tmp_path / "run") for name in "ab"
    ]
    first, second = (Operation.begin("dump", one, Silent(), Interrupts()) for one in tools)
    second.interrupts.request(15)
    with turn(first, needed=True), pytest.raises(Interrupted), turn(second, needed=True):
        pytest.fail("both at once")


def test_a_place_where_nobody_can_wait(tmp_path: Path) -> None:
    operation = Operation.begin("dump", FakeHost().toolbox(tmp_path), Silent(), Interrupts())
    (tmp_path / "names.lock").mkdir()
    with pytest.raises(NotWritable, match=r"names\.lock"), turn(operation, needed=True):
        pytest.fail("nothing keeps others out")


def test_one_that_is_stopped_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_room, "STOPPED_SECONDS", 0.2)
    host = FakeHost.with_job()
    tools = host.toolbox(tmp_path / "state")
    first = Operation.begin("dump", tools, Silent(), Interrupts())
    second = Operation.begin("restore", tools, Silent(), Interrupts())
    lock = str(tmp_path / "state" / "names.lock")
    host.file_locks[lock] = (FileLock(ROOT_PID, "flock", exclusive=True),)
    host.processes[ROOT_PID] = replace(host.processes[ROOT_PID], state="T")
    stopped = rf"pid {ROOT_PID}\) .* is stopped"
    with (
        turn(first, needed=True),
        pytest.raises(ProcessUnfit, match=stopped),
        turn(second, needed=True),
    ):
        pytest.fail("both at once")
