"""What is proved, and what is not: sentences that follow from the facts of the evidence.

What nobody has looked at is said as plainly as what was seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.account import Verdict
from gpuckpt.flow.evidence.document import DUMP, MISSING, Statement
from gpuckpt.flow.work.history import COLD, DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.account import Compared
    from gpuckpt.flow.evidence.document import Attempt, Job, Saved

_Said = tuple[str, str]


def proved(image: Saved, job: Job, attempts: tuple[Attempt, ...]) -> tuple[Statement, ...]:
    """Return what the evidence shows."""
    return _statements(attempts, _image_shown(image), lambda one: _shown(image, job, one))


def not_proved(image: Saved, job: Job, attempts: tuple[Attempt, ...]) -> tuple[Statement, ...]:
    """Return what it does not show."""
    return _statements(attempts, _image_open(image), lambda one: _open(job, one))


def _statements(
    attempts: tuple[Attempt, ...],
    of_image: Iterator[_Said],
    of_attempt: Callable[[Attempt], Iterator[_Said]],
) -> tuple[Statement, ...]:
    told = [Statement(about="image", what=what, text=text) for what, text in of_image]
    for one in attempts:
        told += [Statement(about=one.id, what=what, text=text) for what, text in of_attempt(one)]
    return tuple(told)


def _image_shown(image: Saved) -> Iterator[_Said]:
    yield (
        "tables",
        (
            f"The manifest has the digest it ends with, and each of {len(image.files)} frame "
            "tables the digest that the manifest has of it: looked at when this was written."
        ),
    )


def _image_open(image: Saved) -> Iterator[_Said]:
    yield (
        "bytes-now",
        (
            "The stored bytes were not read when this was written: `gpuckpt verify`, or --check "
            "with the image, reads them."
        ),
    )
    yield "author", "Digests find accidents; they do not tell who wrote the image, or this file."
    yield (
        "elsewhere",
        (
            "What was tried on other hosts, or is recorded no more where this was written, unless "
            "its receipt was named."
        ),
    )
    if unhashed := image.referenced - image.with_digest:
        yield (
            "outside",
            (
                f"Of {unhashed} of the {image.referenced} files outside the image that the job "
                "needs, no digest was taken: size, mode and build-id are compared of them."
            ),
        )
    yield (
        "clocks",
        (
            "Each attempt has its own clock: no time between two of them is told, nor how long the "
            "job was away."
        ),
    )
    yield "results", "That the job computes what it would have computed without a dump."


def _shown(image: Saved, job: Job, one: Attempt) -> Iterator[_Said]:
    if one.outcome != DONE or one.operation == COLD:
        return
    if one.operation == DUMP:
        yield "committed", "The image was complete and synced before it had its name."
        return
    yield (
        "bytes",
        (
            f"Every byte that the restore used, of {image.raw}, was compared with its digest "
            "before any task ran."
        ),
    )
    state = ", and the driver's state of each with CUDA" if job.cuda_pids else ""
    settled = f", and after {one.settle:g} s" if one.after is not None else ""
    yield (
        "processes",
        (
            f"Its processes ({len(job.pids)}) with their threads and programs{state} were as in "
            f"the image when the job ran{settled}."
        ),
    )
    if one.gates and not _forced(one):
        yield "gates", f"{len(one.gates)} gates were compared, and none was forced."
    if one.memory is not None:
        yield (
            "memory",
            (
                f"{one.memory.bytes} bytes of {one.memory.pages} pages were read back before any "
                f"task ran: those of the image, but for {one.memory.masked} that differ by right."
            ),
        )
    if one.progress == "ran":
        yield "progress", "A process was seen to use CPU time since it was let go on."
    if _reached(one, "probe-ready"):
        yield "probe", f"The probe succeeded: {one.probe}"


def _open(job: Job, one: Attempt) -> Iterator[_Said]:
    if one.outcome == MISSING:
        yield "all", "It was planned, and nothing tells what became of it."
    elif one.outcome != DONE:
        yield "all", f"It ended with {one.outcome}: nothing of the job is proved by it."
    elif one.operation == COLD:
        since = one.lost.since_image if one.lost is not None else None
        lost = "" if since is None else f", and {since:.0f} s of work since it are lost"
        yield "all", f"The job was started from its beginning: nothing is of the image{lost}."
    elif one.operation == DUMP:
        yield "restorable", "That the image can be restored: only a restore shows it."
    else:
        yield from _left_open(job, one)


def _left_open(job: Job, one: Attempt) -> Iterator[_Said]:
    """Yield what a restore that succeeded has not shown."""
    if one.after is None:
        yield "host", "The receipt does not tell the host, its gates and what was looked at."
    for gate in _forced(one):
        yield "gates", f"{gate.gate} of {gate.object} was closed, and forced: {gate.reason}"
    if one.memory is None:
        yield "memory", "The memory was not read back before the tasks ran (--prove)."
    elif one.memory.not_compared:
        yield "memory", f"{one.memory.not_compared} findings tell what could not be compared."
    if job.cuda_pids:
        yield "gpu-memory", "What stood in GPU memory after the driver had given it back."
    if one.progress != "ran":
        yield "progress", "That the job moves: no process was seen to use CPU time."
    if not _reached(one, "probe-ready"):
        yield "probe", "That the job serves: no probe has succeeded."


def _forced(one: Attempt) -> list[Compared]:
    return [gate for gate in one.gates if gate.verdict is Verdict.FORCED]


def _reached(one: Attempt, interval: str) -> bool:
    known = one.timing.intervals if one.timing is not None else ()
    return any(each.name == interval and each.seconds is not None for each in known)
