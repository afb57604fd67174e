"""Receipts add up, whatever is timed, nested, run beside, passed on or cut short."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from decimal import Decimal
from itertools import pairwise
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuckpt.events import Silent
from gpuckpt.flow.work import receipt as rooms
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.receipt import Recorder, Stages
from gpuckpt.timing import BESIDE, Receipt

NAMES = st.sampled_from(("look", "lock", "stream", "commit", "gpu-in"))
# what happens next, and how many nanoseconds later
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("begin", "part", "beside", "end", "event", "next", "close")),
        NAMES,
        st.integers(0, 10**10),
    ),
    max_size=40,
)


def check(receipt: Receipt) -> None:
    """Add up what a program reads, digit by digit."""
    told = json.loads(msgspec.json.encode(receipt), parse_float=Decimal, parse_int=Decimal)
    sum_ = sum((one["seconds"] for one in told["phases"] if not one["inside"]), Decimal(0))
    assert sum_ + told["unaccounted"] == told["seconds"]
    assert told["unaccounted"] >= 0
    names = {one.name for one in receipt.phases}
    for one in receipt.phases:
        assert one.started + one.seconds <= receipt.seconds + 1e-9
        assert one.inside in {"", BESIDE, *names}
        assert one.seconds >= 0
    in_sum = [one for one in receipt.phases if not one.inside]
    for earlier, later in pairwise(in_sum):
        assert earlier.started + earlier.seconds <= later.started + 1e-9


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_phases_and_the_rest_add_up(steps: list[tuple[str, str, int]]) -> None:
    now = [0]
    with mock.patch.object(rooms.time, "monotonic_ns", side_effect=lambda: now[0]):
        record = Recorder("dump", Silent(), Interrupts())
        record.spans = spans.of_dump(cuda=True, quiesced=False, stays=False)
        stages = Stages(record)
        open_: list[ExitStack] = []
        for what, name, later in steps:
            now[0] += later
            if what in {"begin", "part", "beside"}:
                stack = ExitStack()
                timed = (
                    record.part(name)
                    if what == "part"
                    else record.phase(name, beside=what == "beside")
                )
                stack.enter_context(timed).advance(later)
                open_.append(stack)
            elif what == "end" and open_:
                open_.pop().close()
            elif what == "event":
                record.event(name)
            elif what == "next" and not open_:
                stages.begin(name)
            elif what == "close":
                while open_:
                    open_.pop().close()
                stages.end()
            check(record.receipt())
        stages.close()
        stages.begin("late")
        while open_:
            open_.pop().close()
        done = record.receipt("done")
    check(done)
    assert not any(one.running or one.name == "late" for one in done.phases)


@given(st.lists(st.sampled_from((spans.LOCK, spans.COMMITTED, spans.GONE, spans.FROZEN))))
def test_an_interval_is_between_two_events_or_says_why_not(events: list[str]) -> None:
    record = Recorder("dump", Silent(), Interrupts())
    record.spans = spans.of_dump(cuda=True, quiesced=False, stays=False)
    for one in events:
        record.event(one)
    found = record.receipt("gpu_step_failed")
    at = {one.name: one.at for one in found.events} | {spans.BEGUN: 0.0}
    for one in found.intervals:
        if one.begin in at and one.end in at:
            assert one.seconds == round(at[one.end] - at[one.begin], 6)
            assert not one.reason
        else:
            assert one.seconds is None
            assert "gpu_step_failed" in one.reason


def test_stages_pass_on_from_another_thread() -> None:
    """The phase that is begun there ends the one that was begun here, and late ones do nothing."""
    record = Recorder("dump", Silent(), Interrupts())
    with Stages(record) as stages:
        stages.begin("freeze")
        thread = threading.Thread(target=stages.begin, args=("stream",))
        thread.start()
        thread.join()
        stages.advance(7)
        assert [one.running for one in record.receipt().phases] == [False, True]
    stages.begin("late")
    found = record.receipt()
    check(found)
    assert [(one.name, one.bytes) for one in found.phases] == [("freeze", 0), ("stream", 7)]
