"""What is told of a restore while it goes on, and kept of it whether it succeeds or not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt import __version__
from gpuckpt.account import Account, Memory
from gpuckpt.errors import GpuckptError
from gpuckpt.flow.returning.compared import compared, new_place
from gpuckpt.flow.returning.elapsed import lost
from gpuckpt.flow.sight.homecoming import returning
from gpuckpt.flow.work import keeping, spans
from gpuckpt.flow.work.history import History, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.request import RestoreRequest, RestoreResult
    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.work.history import Record
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.image.store import Image
    from gpuckpt.model import Finding
    from gpuckpt.timing import Receipt


class Told:
    """What is told of one restore: `expected` are the seconds until its job runs, as forecast.

    `account` grows as more is known. A refused one has its record as well: it was tried, and no
    evidence is whole without it.
    """

    def __init__(self, operation: Operation, request: RestoreRequest, image: Image) -> None:
        """Know nothing of the host yet."""
        self.expected: float | None = None
        self.account = Account(
            gpuckpt=__version__,
            forced=tuple(sorted(request.force_gates)),
            probe=request.probe or "",
            settle=request.settle,
            path_map=dict(request.map_path),
        )
        self._past = History(operation.tools.state_dir).records()
        self._image = image
        self._attempts = request.attempts
        manifest = image.manifest
        operation.record.spans = spans.of_restore(
            cuda=bool(manifest.cuda), quiesced=bool(manifest.quiesced), probe=bool(request.probe)
        )

    def judged(self, facts: TargetFacts, findings: list[Finding]) -> None:
        """Take up what the host is like, before anybody refuses it."""
        manifest, force = self._image.manifest, frozenset(self.account.forced)
        self.account = replace(
            self.account,
            place=new_place(facts),
            gates=compared(manifest, facts, findings, force),
            findings=tuple(findings),
            gpu_map=facts.gpus.map if facts.gpus and manifest.cuda else {},
        )
        if self.expected is None:
            self.expected = returning(manifest, facts.host.cpu_count, self._past).seconds

    def failed(self, why: BaseException) -> None:
        """Take up why it ended; what it found stands beside what was known before."""
        findings = why.findings if isinstance(why, GpuckptError) else ()
        known = self.account.findings
        more = tuple(one for one in findings if one not in known)
        self.account = replace(self.account, findings=known + more, error=str(why))

    def done(self, result: RestoreResult) -> RestoreResult:
        """Take up what came of it, and return it with what is told here."""
        proved = result.proved
        self.account = replace(
            self.account,
            findings=result.findings,
            gpu_map=result.gpu_map,
            pids=result.pids,
            aside=result.aside,
            progress=result.progress,
            memory=proved
            and Memory(
                proved.bytes,
                proved.pages,
                sum(proved.masked.values()),
                proved.beyond,
                len(proved.findings),
            ),
        )
        image_id = self._image.manifest.image_id
        return replace(result, expected=self.expected, account=self.account, image_id=image_id)

    def record(self, receipt: Receipt) -> Record:
        """Return what is kept."""
        known = record_of(self._image.manifest, receipt)
        return replace(
            known,
            image=str(self._image.path),
            expected=self.expected,
            account=self.account,
            attempts=self._attempts,
            lost=lost(self._image.manifest),
        )


@contextmanager
def kept(operation: Operation, told: Told) -> Iterator[keeping.Kept]:
    """Keep the record of a restore, however it ends."""
    with keeping.kept(operation, told.record) as here:
        try:
            yield here
        except BaseException as why:
            told.failed(why)
            raise
