"""What is told of a restore while it goes on, and kept of it whether it succeeds or not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import structs

from gpuckpt.flow.sight.forecast import returning
from gpuckpt.flow.work import keeping, spans
from gpuckpt.flow.work.history import History, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.request import RestoreRequest
    from gpuckpt.flow.work.history import Record
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.image.store import Image
    from gpuckpt.timing import Receipt


@contextmanager
def kept(
    operation: Operation, request: RestoreRequest, image: Image, cores: int
) -> Iterator[float]:
    """Keep the receipt of a restore; gives the seconds until the job runs, as forecast."""
    manifest = image.manifest
    past = History(operation.tools.state_dir).records()
    expected = returning(manifest, cores, past).seconds
    operation.record.spans = spans.of_restore(
        cuda=bool(manifest.cuda), quiesced=bool(manifest.quiesced), probe=bool(request.probe)
    )

    def told(receipt: Receipt) -> Record:
        record = record_of(manifest, receipt)
        return structs.replace(record, image=str(image.path), expected=expected)

    with keeping.kept(operation, told):
        yield expected
