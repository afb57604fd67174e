"""Who needs CRIU's names waits for his turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import Interrupted
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
    with turn(second, needed=True):
        pass
