"""What packers and unpackers count is told as who waited for whom, and how much was worked."""

from __future__ import annotations

from gpuckpt.events import SilentStep
from gpuckpt.flow.work.receipt import CountedStep
from gpuckpt.flow.work.waiting import counted, tell
from gpuckpt.timing import Wait
from gpuckpt.value import Value


class Said(Value, frozen=True):
    """As a packer counts."""

    source: float
    storage: float
    packing: float


def test_a_phase_is_told_what_was_counted_in_it() -> None:
    step = CountedStep(SilentStep())
    first, then = counted(Said(0.5, 0.0, 1.0)), counted(Said(0.5, 0.25, 3.0000004))
    tell(step, first)
    assert step.waits == (Wait("gpuckpt", "CRIU", 0.5), Wait("CRIU", "storage", 0.0))
    assert step.work == {"packing": 1.0}
    tell(step, then, first)
    assert step.waits == (Wait("gpuckpt", "CRIU", 0.0), Wait("CRIU", "storage", 0.25))
    assert step.work == {"packing": 2.0}
