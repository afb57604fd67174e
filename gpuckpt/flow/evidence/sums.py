"""What must hold within a file of evidence: coverage, times, targets, sums, statements."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gpuckpt.flow.evidence import derived, statements
from gpuckpt.flow.evidence.document import DUMP, MISSING
from gpuckpt.flow.evidence.outcomes import contradictions
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.history import COLD, DONE
from gpuckpt.model import blocker
from gpuckpt.timing import BESIDE, micro

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuckpt.flow.evidence.document import Attempt, Evidence, Interval, Timing
    from gpuckpt.model import Finding
    from gpuckpt.timing import Phase

_REMEDY = "Write it anew with `gpuckpt evidence IMAGE`, from the image and the receipts."


def flaw(kind: str, where: str, reason: str) -> Finding:
    """Return what is wrong at a place of the evidence."""
    return blocker(f"evidence-{kind}", where, reason, _REMEDY)


def flaws(evidence: Evidence) -> Iterator[Finding]:
    """Yield everything that does not hold."""
    yield from _coverage(evidence)
    for one in evidence.attempts:
        yield from _attempt(one)
        for what, text in contradictions(one):
            yield flaw("outcome", f"attempts.{one.id}.{what}", text)
        if one.changes != derived.changes(evidence.before, one.after, one.gpu_map, one.path_map):
            where = f"attempts.{one.id}.changes"
            yield flaw("statement", where, "They are not what differs between before and after.")
    yield from _targets(evidence)
    yield from _sizes(evidence)
    facts = (evidence.image, evidence.job, evidence.attempts)
    for name, told, due in (
        ("proved", evidence.proved, statements.proved(*facts)),
        ("not_proved", evidence.not_proved, statements.not_proved(*facts)),
    ):
        if told != due:
            yield flaw("statement", name, "It is not what follows from the facts beside it.")


def _coverage(evidence: Evidence) -> Iterator[Finding]:
    """Every planned attempt has an outcome, failed ones too, and is told of once."""
    plan, attempts = evidence.plan, evidence.attempts
    ids = [one.id for one in attempts]
    for name in sorted({name for name in ids if ids.count(name) > 1}):
        yield flaw("coverage", f"attempts.{name}", f"{name} is told of more than once.")
    if DUMP not in ids or any((one.id == DUMP) != (one.operation == DUMP) for one in attempts):
        yield flaw("coverage", "attempts", "The dump that made the image is not told of once.")
    if sorted(plan.attempts) != sorted(one.id for one in attempts if one.planned):
        yield flaw("coverage", "plan.attempts", "The attempts told of are not those planned.")
    if len(plan.attempts) != plan.restores + 1:
        yield flaw(
            "coverage", "plan.restores", f"{plan.restores} restores were planned, and a dump."
        )
    for kind in ("restore", COLD):
        told = [one.id for one in attempts if one.operation == kind]
        if told != [f"{kind}-{number}" for number in range(1, len(told) + 1)]:
            yield flaw("coverage", "attempts", f"Each {kind} has to be counted, from 1 on.")
    for one in attempts:
        if one.outcome == MISSING:
            yield flaw(
                "coverage", f"attempts.{one.id}", f"{one.id} was planned and has no outcome."
            )
        elif one.timing is None:
            yield flaw("coverage", f"attempts.{one.id}", f"{one.id} has an outcome and no times.")


def _attempt(one: Attempt) -> Iterator[Finding]:
    if one.timing is None:
        return
    place = f"attempts.{one.id}.timing"
    yield from _phases(one.timing, place)
    yield from _intervals(one, one.timing, place)


def _phases(timing: Timing, place: str) -> Iterator[Finding]:
    """The phases inside no other, and the rest, are the whole; none is outside of what holds it."""
    alone = [one for one in timing.phases if not one.inside]
    if sum(micro(one.seconds) for one in alone) + micro(timing.unaccounted) != micro(
        timing.seconds
    ):
        yield flaw("arithmetic", place, "The phases and what is unaccounted are not the whole.")
    for earlier, later in pairwise(alone):
        if _end(earlier) > micro(later.started):
            yield flaw("arithmetic", place, f"{later.name} begins before {earlier.name} ends.")
    for one in timing.phases:
        where = f"{place}.{one.name}"
        if _end(one) > micro(timing.seconds):
            yield flaw("arithmetic", where, f"{one.name} ends after the whole.")
        if one.inside and one.inside != BESIDE and not _within(one, timing.phases):
            yield flaw("arithmetic", where, f"{one.name} does not begin within {one.inside}.")
        rate = round(one.bytes / one.seconds, 1) if one.seconds and one.bytes else 0.0
        if one.rate not in {0.0, rate}:  # older ones do not tell it
            yield flaw("arithmetic", where, f"The rate of {one.name} is not bytes over seconds.")


def _within(one: Phase, phases: Sequence[Phase]) -> bool:
    """Whether it begins there; another thread may end what it is inside of before it ends."""
    return any(
        other.name == one.inside and micro(other.started) <= micro(one.started) <= _end(other)
        for other in phases
    )


def _end(phase: Phase) -> int:
    return micro(phase.started) + micro(phase.seconds)


def _intervals(attempt: Attempt, timing: Timing, place: str) -> Iterator[Finding]:
    """Each is bound to two declared events and one clock, and is the time between them."""
    names = [one.name for one in timing.intervals]
    at = {spans.BEGUN: 0} | {one.name: micro(one.at) for one in timing.events}
    if len(at) != len(timing.events) + 1:
        yield flaw("timing", place, "An event is told of more than once.")
    for name, when in at.items():
        if when > micro(timing.seconds):
            yield flaw("arithmetic", f"{place}.{name}", f"The event {name} comes after the whole.")
    for one in timing.intervals:
        for text in _interval(one, at):
            yield flaw("timing", f"{place}.{one.name}", text)
        if names.count(one.name) > 1:
            yield flaw("timing", f"{place}.{one.name}", f"{one.name} stands for several intervals.")
        if one.clock != timing.clock:
            yield flaw("timing", f"{place}.{one.name}", f"{one.name} is by another clock.")
    if attempt.outcome == DONE and attempt.operation == "restore" and attempt.after is not None:
        for name in sorted({"runs", "first-progress", "probe-ready"} - set(names)):
            yield flaw("timing", place, f"The interval {name} is not told of.")


def _interval(one: Interval, at: dict[str, int]) -> Iterator[str]:
    if one.definition != derived.definition(one.begin, one.end):
        yield f"The definition of {one.name} is not that of its events."
    both = one.begin in at and one.end in at
    if one.seconds is None:
        if both or not one.reason:
            yield f"{one.name} has no length, though both its events came, or without a reason."
    elif not both:
        yield f"{one.name} has a length, and one of its events is not told of."
    elif micro(one.seconds) != at[one.end] - at[one.begin]:
        yield f"{one.name} is not the time from {one.begin} to {one.end}."


def _targets(evidence: Evidence) -> Iterator[Finding]:
    """Each is bound to an interval of an attempt, and judged by that alone."""
    known = {one.id: one for one in evidence.attempts}
    for number, one in enumerate(evidence.targets):
        where = f"targets[{number}]"
        attempt = known.get(one.attempt)
        if attempt is None:
            yield flaw("target", where, f"No attempt {one.attempt} is told of.")
            continue
        told = attempt.timing.intervals if attempt.timing is not None else ()
        if told and one.interval not in {each.name for each in told}:
            yield flaw("target", where, f"{one.attempt} has no interval {one.interval}.")
        elif one != derived.target(attempt, one.interval, one.at_most):
            yield flaw("target", where, f"It is not judged by {one.interval} of {one.attempt}.")
    yield from _bound(evidence)


def _bound(evidence: Evidence) -> Iterator[Finding]:
    """A threshold judges every planned attempt of its kind, and not those alone that met it."""
    kinds = {one.id: one.operation for one in evidence.attempts}
    bound: dict[tuple[str, float], set[str]] = {}
    for one in evidence.targets:
        bound.setdefault((one.interval, one.at_most), set()).add(one.attempt)
    for (interval, _), names in bound.items():
        judged = {kinds.get(name) for name in names}
        for name in evidence.plan.attempts:
            if kinds.get(name) in judged and name not in names:
                yield flaw("target", f"targets.{interval}", f"{name} is not judged by it.")


def _sizes(evidence: Evidence) -> Iterator[Finding]:
    image, job = evidence.image, evidence.job
    names = {one.name for one in image.files}
    for name, told, due in (
        ("image.raw", image.raw, sum(one.raw for one in image.files)),
        ("image.stored", image.stored, sum(one.stored for one in image.files)),
        ("image.ratio", image.ratio, derived.ratio(image.raw, image.stored)),
        ("image.tables", image.tables, derived.tables(image.files)),
        ("image.files", len(image.files), len(names)),
        ("job.gpu_bytes", job.gpu_bytes, sum(one.bytes for one in job.uses)),
    ):
        if told != due:
            yield flaw("arithmetic", name, f"{name} is {told}, and comes out as {due}.")
    if image.pages > image.raw:
        yield flaw("arithmetic", "image.pages", "There are more bytes in pages than in all files.")
    if image.with_digest > image.referenced:
        yield flaw("arithmetic", "image.with_digest", "More files were hashed than there are.")
