"""Who needs CRIU's names waits for his turn."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import Interrupted, NotWritable
from gpuckpt.events import Silent
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.operation import Operation
from gpuckpt.flow.work.turn import turn
from tests.fakes.host import FakeHost

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


def test_a_place_where_nobody_can_wait(tmp_path: Path) -> None:
    operation = Operation.begin("dump", FakeHost().toolbox(tmp_path), Silent(), Interrupts())
    (tmp_path / "names.lock").mkdir()
    with pytest.raises(NotWritable, match=r"names\.lock"), turn(operation, needed=True):
        pytest.fail("nothing keeps others out")
