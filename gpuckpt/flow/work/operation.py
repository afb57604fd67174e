"""What dump and restore are run with: the tools, the clock, the signals and the journal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpuckpt.flow.work.journal import Entry, Journal
from gpuckpt.flow.work.receipt import Recorder
from gpuckpt.flow.work.tasks import myself
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.flow.work.traces import Linked
    from gpuckpt.model import CudaState, ProcessRef


class Operation(Value, frozen=True):
    """One run of one verb."""

    verb: str
    tools: Toolbox
    record: Recorder
    interrupts: Interrupts
    journal: Journal

    @classmethod
    def begin(
        cls, verb: str, tools: Toolbox, reporter: Reporter, interrupts: Interrupts
    ) -> Operation:
        """Start the clock and open the journal's folder."""
        record = Recorder(verb, reporter, interrupts)
        return cls(verb, tools, record, interrupts, Journal(tools.state_dir))

    def enter(
        self,
        pid: int,
        image: str,
        processes: Iterable[ProcessRef] = (),
        first: Mapping[int, CudaState] | None = None,
        linked: tuple[Linked, ...] = (),
        **known: Any,  # noqa: ANN401 - further fields of the entry
    ) -> Entry:
        """Write the journal entry, before the first thing is touched.

        Raises:
            ProcessUnfit: another gpuckpt works on one of the processes, or on the image.
        """
        now = datetime.now(UTC)
        entry = Entry(
            id=f"{now:%Y%m%dT%H%M%SZ}-{pid}-{uuid4().hex[:8]}",
            operation=self.verb,
            started=f"{now:%Y-%m-%dT%H:%M:%SZ}",
            boot_id=self.tools.host.facts().boot_id,
            owner=myself(self.tools),
            image=image,
            processes=tuple(processes),
            first=dict(first or {}),
            linked=linked,
            **known,
        )
        proc = self.tools.proc
        above = [proc.process(one) for one in proc.ancestors(pid)] if entry.processes else ()
        refs = [process.ref for process in above if process is not None]
        self.journal.open(entry, proc.alive, refs)
        return entry
