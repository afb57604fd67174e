"""What is told of a dump or a rehearsal while it goes on, and kept of it however it ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from msgspec import structs

from gpuckpt.flow.sight.forecast import forecast
from gpuckpt.flow.work import spans
from gpuckpt.flow.work.history import History, Record, command, record_of
from gpuckpt.flow.work.keeping import Kept, kept
from gpuckpt.flow.work.receipt import Stages

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gpuckpt.flow.taking.hands import Taking
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.receipt import Recorder
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.timing import Receipt

# all others CRIU (4.2.1) asks for when it has the tree
_BEFORE_THE_FREEZE: Final = "cpuinfo.img"


class Told:
    """What is told of one dump: `expected` is its pause as forecast, `manifest` its image's."""

    def __init__(self, operation: Operation, taking: Taking, *, stays: bool) -> None:
        """Read what earlier ones took, while the job runs; `stays`: it goes on afterwards."""
        self._past = History(operation.tools.state_dir).records()
        self.expected: float | None = None
        self.manifest: Manifest | None = None
        self._operation = operation
        self._taking = taking
        self._stays = stays

    def kept(self) -> AbstractContextManager[Kept]:
        """Keep the record of what is done within."""
        return kept(self._operation, self._record)

    def expect(self) -> None:
        """Forecast the pause of the job as it is by now; what of it will be timed is known then."""
        taking = self._taking
        facts = taking.sight.facts
        self.expected = forecast(facts, self._past, leave_running=self._stays).pause
        self._operation.record.spans = spans.of_dump(
            cuda=bool(taking.cuda.pids), quiesced=bool(taking.quiesced), stays=self._stays
        )

    def _record(self, receipt: Receipt) -> Record:
        known = record_of_job(self._taking, receipt, self.expected)
        if self.manifest is None:
            return known
        made, image = record_of(self.manifest, receipt), str(self._taking.sight.output)
        return structs.replace(made, image=image, pause=known.pause, expected=known.expected)


class Streaming(Stages):
    """The phases of CRIU's dump: `freeze` until it has the tree, then `stream`, then the rest."""

    def __init__(self, record: Recorder, size: int) -> None:
        """Expect about `size` bytes; nothing has begun."""
        super().__init__(record)
        self._size = size
        self._first = threading.Lock()

    def watched(
        self, store: Callable[[str, int], None], then: Callable[[], None]
    ) -> Callable[[str, int], None]:
        """Return `store`, watched: what CRIU asks for first proves that it has the tree.

        `then` is told when it does.
        """

        def watched(name: str, fd: int) -> None:
            if name != _BEFORE_THE_FREEZE and self._first.acquire(blocking=False):
                self.record.event(spans.FROZEN)
                then()
                self.begin("stream", "memory to the image", self._size)
            store(name, fd)

        return watched


def record_of_job(taking: Taking, receipt: Receipt, expected: float | None = None) -> Record:
    """Return the record of an operation on a running job; `expected` is its pause as forecast."""
    sight = taking.sight
    root = sight.tree.root
    return Record(
        operation=receipt.operation,
        started=receipt.started,
        receipt=receipt,
        command=command(root.argv, root.comm),
        gpu_bytes=taking.cuda.bytes,
        processes=len(sight.tree.pids),
        cuda=len(taking.cuda.pids),
        host=sight.host.hostname,
        driver=sight.nvidia.driver if sight.nvidia else "",
        pause=receipt.interval("pause") or 0.0,
        expected=expected,
    )
