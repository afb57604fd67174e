"""What in the evidence follows from the rest of it: pure functions, for the writer and the checker.

So nothing of it can be altered by itself without being found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.flow.evidence.document import Change, Interval, Target, Timing
from gpuckpt.flow.work import spans
from gpuckpt.timing import micro, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.account import Place
    from gpuckpt.flow.evidence.document import Attempt, SavedFile
    from gpuckpt.timing import Receipt

CLOCK = "CLOCK_MONOTONIC of gpuckpt"


def tables(files: Iterable[SavedFile]) -> str:
    """Return the digest over the digests of all frame tables."""
    whole = blake3()
    for one in files:
        whole.update(f"{one.name} {one.table}\n".encode())
    return whole.hexdigest()


def ratio(raw: int, stored: int) -> float:
    """Return how much smaller the bytes became."""
    return round(raw / stored, 3) if stored else 0.0


def definition(begin: str, end: str) -> str:
    """Say in words what an interval is."""
    return f"from when {_means(begin)} until {_means(end)}"


def _means(event: str) -> str:
    return spans.MEANS.get(event, f"the event {event} came")


def timing(receipt: Receipt) -> Timing:
    """Return the times of a receipt, each interval with its definition and its clock."""
    clock = next((one for name, one in receipt.clocks.items() if "intervals" in name), CLOCK)
    return Timing(
        clock=clock,
        started=receipt.started,
        seconds=receipt.seconds,
        unaccounted=seconds(micro(receipt.rest)),
        phases=receipt.phases,
        events=receipt.events,
        intervals=tuple(
            Interval(
                name=one.name,
                begin=one.begin,
                end=one.end,
                clock=clock,
                definition=definition(one.begin, one.end),
                seconds=one.seconds,
                reason=one.reason,
            )
            for one in receipt.intervals
        ),
        foreign=receipt.foreign,
    )


def changes(
    before: Place, after: Place | None, gpu_map: dict[str, str], path_map: dict[str, str]
) -> tuple[Change, ...]:
    """Return what of the host is not as it was, GPUs and paths by what became of each."""
    if after is None:
        return ()
    moved = (Change(what="path", before=old, after=new) for old, new in path_map.items())
    return (*_changes(before, after, gpu_map), *moved)


def _changes(before: Place, after: Place, gpu_map: dict[str, str]) -> Iterator[Change]:
    for what in ("hostname", "kernel", "boot_id", "arch", "libc", "cpu_model", "criu"):
        yield from _change(what, getattr(before, what), getattr(after, what))
    if before.addresses and after.addresses:
        yield from _change("addresses", " ".join(before.addresses), " ".join(after.addresses))
    yield from _change("memory_total", str(before.memory_total), str(after.memory_total))
    if not before.driver:  # a job without CUDA has nothing to do with them
        return
    for what in ("driver", "cuda"):
        yield from _change(what, getattr(before, what), getattr(after, what))
    yield from _change("gpu count", str(len(before.gpus)), str(len(after.gpus)))
    here = {one.uuid: one for one in after.gpus}
    for old in before.gpus:
        new = here.get(gpu_map.get(old.uuid, old.uuid))
        name = f"gpu {old.index}"
        if new is None:
            yield Change(what=f"{name} uuid", before=old.uuid, after="none")
            continue
        for what in ("uuid", "index", "name", "memory_total", "bus_id", "compute_capability"):
            yield from _change(f"{name} {what}", str(getattr(old, what)), str(getattr(new, what)))


def _change(what: str, before: str, after: str) -> Iterator[Change]:
    if before != after:
        yield Change(what=what, before=before, after=after)


def target(attempt: Attempt, interval: str, at_most: float) -> Target:
    """Return a threshold, judged by the interval that it is bound to."""
    known = attempt.timing.intervals if attempt.timing is not None else ()
    measured = next((one.seconds for one in known if one.name == interval), None)
    return Target(
        attempt=attempt.id,
        interval=interval,
        at_most=at_most,
        measured=measured,
        met=None if measured is None else measured <= at_most,
    )
