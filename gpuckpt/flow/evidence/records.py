"""Evidence against what was recorded elsewhere: the receipts of this host, the image's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.evidence.document import DUMP
from gpuckpt.flow.evidence.make import RESTORE, attempt, cold_attempt
from gpuckpt.flow.evidence.sums import flaw
from gpuckpt.flow.work.history import COLD, History

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuckpt.flow.evidence.document import Attempt, Evidence
    from gpuckpt.flow.work.history import Record
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import Finding

# a name that it got, not what it tells
_GIVEN: Final = frozenset({"id", "planned", "source"})


def unlike(evidence: Evidence, state_dir: Path) -> Iterator[Finding]:
    """Yield what this host has recorded of the image before, and is not told as it was recorded."""
    for path, record in History(state_dir).files_of_image(evidence.image.image_id):
        if record.operation not in {RESTORE, COLD} or not _before(record, evidence.written):
            continue
        due = _due(path, record, evidence)
        told = [one for one in evidence.attempts if _when(one) == _when(due)]
        if not told:
            text = f"Nothing tells of the {record.operation} that {path} has recorded."
            yield flaw("coverage", "attempts", text)
        for one in told:
            for field in due.__struct_fields__:
                if field not in _GIVEN and getattr(one, field) != getattr(due, field):
                    where = f"attempts.{one.id}.{field}"
                    yield flaw("record", where, f"It is not what {path} has recorded.")


def unlike_the_dump(evidence: Evidence, manifest: Manifest) -> Iterator[Finding]:
    """Yield what the image knows of its dump, until its manifest was made, and is not told."""
    known = manifest.receipt
    for one in evidence.attempts:
        if one.operation != DUMP or one.timing is None:
            continue
        phases = {(each.name, each.started, each.seconds) for each in one.timing.phases}
        due = [each for each in known.phases if not each.running]
        same = one.timing.started == known.started and {*known.events} <= {*one.timing.events}
        if not same or not phases.issuperset(
            (each.name, each.started, each.seconds) for each in due
        ):
            where = f"attempts.{one.id}.timing"
            yield flaw("record", where, "Its times are not those that the image has of its dump.")


def _before(record: Record, written: str) -> bool:
    """Whether it was over when the evidence was written; False if that cannot be told."""
    try:
        begun, moment = (_moment(text) for text in (record.started, written))
    except ValueError:
        return False
    # times of day are cut to seconds
    return begun + timedelta(seconds=record.receipt.seconds + 1) < moment


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _due(path: Path, record: Record, evidence: Evidence) -> Attempt:
    if record.operation == COLD:
        return cold_attempt(1, path, record)
    return attempt("", str(path), record, evidence.before, planned=False)


def _when(one: Attempt) -> tuple[str, str, tuple[object, ...]]:
    timing = one.timing
    return one.operation, timing.started if timing else "", timing.phases[:1] if timing else ()
