"""A job that goes on while its image is still being written.

CRIU has let it run, and all that is needed of it is ours. It is given its GPU state back, and
from then on nothing of it is touched any more: whatever goes wrong costs only the image.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from gpuckpt.errors import GpuckptError, ImageNotMade, Interrupted, UndoIncomplete
from gpuckpt.flow.taking.aftermath import late_gpu, softened
from gpuckpt.flow.taking.staging import remove
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.undo import AGAIN

if TYPE_CHECKING:
    from gpuckpt.flow.taking.commit import Commit
    from gpuckpt.flow.taking.hands import Taking
    from gpuckpt.flow.work.operation import Operation

LOST: Final = "the job runs on; the image was not made"
_STUCK: Final = "the job was not given its GPU state back"


def part(operation: Operation, taking: Taking, commit: Commit) -> None:
    """Let the job go on, then finish its image.

    A job that cannot be given its GPU state back needs the image more than any other: then nothing
    but a failure keeps that from being made.

    Raises:
        ImageNotMade, Interrupted: the job runs, and there is no image.
        UndoIncomplete: the job was not given its GPU state back.
    """
    commit.start_writing()
    stuck = _give_back(operation, taking)
    stage = commit.stage
    taking.undo.add(f"the unfinished image {stage.folder} is left", lambda: remove(taking, stage))
    try:
        if stuck is None:
            _leave(operation, taking)
        commit.complete(stoppable=stuck is None)
    except Exception as why:
        commit.abort()
        if stage.committed:  # then it was the telling of it that failed
            taking.undo.keep()
            hugepages.close(operation, taking.entry)
            raise
        if stuck is not None:
            raise _nothing_left(taking, stuck, why) from why
        _give_up(operation, taking, why)
    taking.undo.keep()
    if stuck is not None:
        raise _image_left(commit, stuck) from stuck
    hugepages.close(operation, taking.entry)


def _give_back(operation: Operation, taking: Taking) -> UndoIncomplete | None:
    """Give the job its GPU state back; a step that failed is tried once more.

    A call that failed does not say how far it got, and the states are read anew. If there is
    no GPU memory for it the helpers must not do, without us, what we do not dare.
    """
    taking.undo.keep()
    taking.undo.add("driver helpers are left", operation.tools.cuda.close)
    taking.undo.add("the job is not back", taking.give_back)
    try:
        taking.give_back()
    except Exception as why:  # noqa: BLE001 - whatever it was, the job has to get on
        operation.record.reporter.warn(f"{why}; trying once more")
        try:
            taking.undo.run(UndoIncomplete(_STUCK))
        except UndoIncomplete as left:
            taking.release_huge_pages()
            return left
        taking.findings.append(late_gpu(why))
    taking.undo.keep()
    taking.findings += map(softened, taking.unmoved)
    return None


def _leave(operation: Operation, taking: Taking) -> None:
    """The job is as it was: from here on nobody touches it for us, a repair neither."""
    taking.findings += taking.release_huge_pages()
    with suppress(GpuckptError, OSError):  # helpers end with us, and the job has all it had
        operation.tools.cuda.close()
    pids = tuple(ref.pid for ref in taking.entry.processes)
    gone: dict[str, object] = {"processes": (), "first": {}, "threads": {}, "uses": ()}
    with suppress(GpuckptError):  # then a repair would ask the job, and find nothing to do
        taking.note("let-go", pids=pids, linked=(), quiesced=False, **gone)


def _give_up(operation: Operation, taking: Taking, why: Exception) -> NoReturn:
    """Remove what there is of an image; a repair does it where we cannot."""
    told = LOST
    try:
        taking.undo.run(why)
    except UndoIncomplete as left:
        told += f", and {'; '.join(left.excerpt)}: `gpuckpt repair` removes it"
    else:
        if taking.abandoned:
            told += f", and {taking.abandoned}: `gpuckpt repair` removes it"
        else:
            hugepages.close(operation, taking.entry)
    if isinstance(why, Interrupted):
        raise Interrupted(why.signum, told) from why
    known = why if isinstance(why, GpuckptError) else None
    raise ImageNotMade(f"{told}: {why}", hint=known.hint if known else "") from why


def _nothing_left(taking: Taking, stuck: UndoIncomplete, why: Exception) -> UndoIncomplete:
    """Return what to say when neither the job nor the image came to what it should be."""
    with suppress(UndoIncomplete):  # it stands in the journal with the job
        taking.undo.run(why)
    told = f"{stuck.message}; and the image was not made: {why}"
    return UndoIncomplete(told, hint=stuck.hint, excerpt=stuck.excerpt)


def _image_left(commit: Commit, stuck: UndoIncomplete) -> UndoIncomplete:
    hint = "End the job and restore the image. "
    told = f"the image {commit.stage.final} is whole, but {stuck.message}"
    more = stuck.hint if stuck.hint != AGAIN else hint + AGAIN
    return UndoIncomplete(told, hint=more, log=stuck.log, excerpt=stuck.excerpt)
