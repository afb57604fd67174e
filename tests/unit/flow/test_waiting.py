"""What packers and unpackers count is told as who waited for whom, and how much was worked."""

from __future__ import annotations

from gpuckpt.events import SilentStep
from gpuckpt.flow.work.receipt import CountedStep
from gpuckpt.flow.work.waiting import Tally
from gpuckpt.timing import Wait
from gpuckpt.value import Value


class Said(Value, frozen=True):
    """As a packer counts."""

    source: float
    storage: float
    packing: float


def test_a_phase_is_told_what_was_counted_in_it() -> None:
    step = CountedStep(SilentStep())
    said = [Said(0.25, 0.0, 0.0), Said(0.5, 0.0, 1.0), Said(0.5, 0.25, 3.0000004), Said(1, 1, 1)]
    tally = Tally(lambda: said.pop(0))
    tally.skip()
    tally.tell(step)
    assert step.waits == (Wait("gpuckpt", "CRIU", 0.25), Wait("CRIU", "storage", 0.0))
    assert step.work == {"packing": 1.0}
    tally.tell(step)
    assert step.waits == (Wait("gpuckpt", "CRIU", 0.0), Wait("CRIU", "storage", 0.25))
    assert step.work == {"packing": 2.0}
    tally.tell(None)  # the phase is over already: it is told of none
    assert not said
