"""Finishing what a gpuckpt that was killed had left: before anything new is begun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, UndoIncomplete
from gpuckpt.flow.gpu import CudaTree
from gpuckpt.flow.workspace import folder_of, remove
from gpuckpt.image.stage import sweep
from gpuckpt.tools.criu import DUMP_LOG

if TYPE_CHECKING:
    from gpuckpt.flow.interrupts import Interrupts
    from gpuckpt.flow.journal import Entry
    from gpuckpt.flow.operation import Operation
    from gpuckpt.flow.toolbox import Toolbox


def recover(operation: Operation) -> None:
    """Put back whatever entries with a dead owner tell of, and forget them.

    The driver's helpers bring CUDA states back by themselves when gpuckpt dies, so most often
    there is only a stage to remove; a state that is still away is brought back here.

    Raises:
        UndoIncomplete: a process could not be brought back.
    """
    tools = operation.tools
    boot = tools.host.facts().boot_id
    for entry in operation.journal.entries():
        if entry.boot_id == boot and tools.proc.alive(entry.owner):
            continue
        if entry.boot_id == boot and entry.operation in {"dump", "rehearse"}:
            _bring_back(tools, entry, operation.interrupts)
            _free_connections(tools, entry)
        if entry.stage:
            sweep(Path(entry.stage).parent, lambda _owner: False)
        remove(tools.state_dir, entry.id)
        operation.journal.close(entry)
        operation.record.reporter.note(
            f"an earlier {entry.operation} of {entry.started} was cut short; it was cleaned up"
        )


def _bring_back(tools: Toolbox, entry: Entry, interrupts: Interrupts) -> None:
    alive = {ref.pid for ref in entry.processes if tools.proc.alive(ref)}
    first = {pid: state for pid, state in entry.first.items() if pid in alive}
    if not first:
        return
    try:
        cuda = CudaTree(tools, interrupts, first, entry.threads)
        cuda.open()
        cuda.bring_back()
    except GpuckptError as why:
        raise UndoIncomplete(
            f"an earlier dump of {entry.started} was killed and left process "
            f"{min(first)} without its GPU state: {why}",
            hint="Run the command again when the cause is gone; nothing else was touched.",
        ) from why
    finally:
        tools.cuda.close()


def _free_connections(tools: Toolbox, entry: Entry) -> None:
    """If CRIU was killed as well, the job runs with its TCP connections cut.

    Those of a job that is gone stay as they are: its image needs them so.
    """
    alive = [ref.pid for ref in entry.processes if tools.proc.alive(ref)]
    if not alive:
        return
    log = folder_of(tools.state_dir, entry.id) / DUMP_LOG
    try:
        tools.net.free_connections(alive, log)
    except OSError as why:
        raise UndoIncomplete(
            f"an earlier dump of {entry.started} was killed and left the TCP connections of "
            f"process {alive[0]} cut: {why}",
            hint="Run the command again when the cause is gone; nothing else was touched.",
        ) from why
