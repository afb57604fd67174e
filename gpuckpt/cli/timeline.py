"""What a receipt tells people: its phases over time, its intervals, who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import failure, units
from gpuckpt.cli.page import Fields, Table, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.cli.page import Block
    from gpuckpt.flow.sight.experience import Lately
    from gpuckpt.flow.work.history import Record
    from gpuckpt.model import Lost
    from gpuckpt.timing import Foreign, Interval, Receipt


# seconds; what is less stands in the JSON alone
_WORTH_A_LINE = 0.001


def of_record(record: Record) -> Iterator[Block]:
    """Draw what was kept of an operation."""
    from gpuckpt.flow.work.history import COLD

    ended = "done" if record.outcome == "done" else f"failed ({record.outcome})"
    head = f"{record.operation} of {record.started}, {ended}"
    yield from of_receipt(record.receipt, head)
    if told := forecast(record.expected, record.took, record.receipt):
        yield Fields((("forecast", told),))
    if record.attempts:
        yield failure.attempts(record.attempts)
    cold = record.operation == COLD
    if record.lost and (record.attempts or cold):
        yield Fields(tuple(lost(record.lost, cold=cold)))


def of_receipt(receipt: Receipt, head: str) -> Iterator[Block]:
    """Draw a receipt below `head`."""
    yield Timeline(head, receipt)
    if receipt.intervals:
        rows = tuple(map(_interval, receipt.intervals))
        yield Table("", ("INTERVAL", "SECONDS", "FROM", "TO"), rows, right=frozenset({1}))
    waits = tuple(_waits(receipt))
    if waits:
        yield Table("", ("WAITED", "SECONDS", "IN", "FOR"), waits, right=frozenset({1}))
    if work := tuple(_work(receipt)):
        yield Fields(work)
    if receipt.foreign:
        yield Fields(tuple((f"{one.whose} says", _foreign(one)) for one in receipt.foreign))


def forecast(expected: float | None, took: float | None, receipt: Receipt) -> str:
    """Return what was expected and what became of it, empty where one is not known."""
    from gpuckpt.flow.work.history import proving

    if not expected or took is None:
        return ""
    off = units.percent(took / expected - 1)
    proof = ", without the proof" if receipt.operation == "restore" and proving(receipt) else ""
    return f"expected {units.seconds(expected)}, took {units.seconds(took)} ({off}){proof}"


def reached(receipt: Receipt) -> str:
    """Return when a restored job ran, moved and answered, as far as it did, in that order."""
    words = {
        "runs": "it runs",
        "first-progress": "was seen to move",
        "probe-ready": "the probe succeeded",
    }
    known = (
        (one.seconds, words[one.name])
        for one in receipt.intervals
        if one.seconds is not None and one.name in words
    )
    in_order = sorted(known, key=lambda one: one[0])  # where two are alike, as intervals stand
    return ", ".join(f"{units.seconds(seconds)} {what}" for seconds, what in in_order)


def lost(what: Lost, *, cold: bool) -> Iterator[tuple[str, str]]:
    """Say how much of the job's time is in no image, and how much a start does again."""
    if what.since_image is not None:
        said = f"{units.seconds(what.since_image)} since the image was made"
        if cold and what.before_image is not None:
            said += f", and the {units.seconds(what.before_image)} it had run before"
        yield "lost", said


def lately(known: Lately) -> str:
    """Return how far forecasts have been off, empty if there were none."""
    if known.median is None:
        return ""
    return f"lately off by {units.percent(known.median)} (median of {known.count})"


def _interval(one: Interval) -> tuple[str, ...]:
    if one.seconds is None:
        said = one.reason if one.reason.startswith(one.end) else f"{one.end}: {one.reason}"
        return (one.name, "", one.begin, said)
    return (one.name, units.seconds(one.seconds), one.begin, one.end)


def _waits(receipt: Receipt) -> Iterator[tuple[str, ...]]:
    for phase in receipt.phases:
        for one in phase.waits:
            if one.seconds >= _WORTH_A_LINE:
                yield one.who, units.seconds(one.seconds), phase.name, one.on


def _work(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """Say how busy the threads were: 2.0 s in one second are two cores."""
    for phase in receipt.phases:
        if phase.work:
            told = (f"{name} {units.seconds(spent)}" for name, spent in phase.work.items())
            yield f"work in {phase.name}", f"{', '.join(told)}, of all threads together"


def _foreign(one: Foreign) -> str:
    """Return in one line what belongs in no sum with ours."""
    times = [f"{name} {units.seconds(value)}" for name, value in one.seconds.items()]
    counts = [f"{value} {name.replace('_', ' ')}" for name, value in one.counts.items()]
    return f"{', '.join((*times, *counts))}; its clock: {one.clock}"
