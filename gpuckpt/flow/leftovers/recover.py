"""What an earlier run that was cut short means for a new one: before anything is begun."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import Unfinished, WriteFailed
from gpuckpt.flow.leftovers.found import (
    cut_short,
    files_of,
    left_of,
    remaps_of,
    same_boot,
    table_of,
)
from gpuckpt.flow.leftovers.placed import clear
from gpuckpt.flow.leftovers.sent import in_store, take_away
from gpuckpt.flow.work import hugepages
from gpuckpt.flow.work.journal import at_work
from gpuckpt.flow.work.workspace import remove
from gpuckpt.image.stage import sweep
from gpuckpt.tools.cuda_wire import HELPER

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuckpt.flow.work.journal import Entry, Journal
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding

# the helpers of a gpuckpt that was killed bring CUDA states back by themselves: give them a moment
PATIENCE = 10.0
POLL_SECONDS = 0.2


def recover(operation: Operation, pids: Collection[int], image: str) -> None:
    """Clear the files that earlier runs on these processes or this image left; tell of others.

    Raises:
        ProcessUnfit: another gpuckpt is at work on them.
        Unfinished: one has left a process that has to be put back first.
    """
    tools = operation.tools
    for entry in operation.journal.entries():
        if not cut_short(tools, entry):
            if concerns(entry, pids, image):
                raise at_work(entry, min(set(pids) & known(entry), default=None))
            continue
        found = left_of(tools, entry)
        if not concerns(entry, pids, image):
            if any(finding.blocks for finding in found):
                operation.record.reporter.note(f"{story(entry, found)}: see `gpuckpt status`")
            continue
        if any(finding.blocks for finding in found):
            found = _after_helpers(tools, entry, found)
        if any(finding.blocks for finding in found):
            raise Unfinished(
                f"{story(entry, found)}", findings=[one for one in found if one.blocks]
            )
        told = "it was cleaned up"
        try:
            tidy(tools, operation.journal, entry)
        except WriteFailed as why:  # that store may be gone for good: others can be written to
            told = f"see `gpuckpt status`: {why}"
        operation.record.reporter.note(f"an earlier {entry.title} was cut short; {told}")


def tree_of(tools: Toolbox, pid: int) -> tuple[int, ...]:
    """Return the pids of a tree; just the one asked for if it is gone, which is told later."""
    return tools.proc.tree(pid).pids if tools.proc.process(pid) else (pid,)


def concerns(entry: Entry, pids: Collection[int], image: str) -> bool:
    """Whether an entry is about one of these processes or this image."""
    return bool(known(entry).intersection(pids)) or (bool(image) and entry.image == image)


def known(entry: Entry) -> set[int]:
    """Return all pids that an entry is about."""
    return {*(ref.pid for ref in entry.processes), *entry.pids}


def story(entry: Entry, found: Collection[Finding]) -> str:
    """Say in one sentence what an earlier run has left."""
    touched = sorted({one.pid for one in found if one.blocks and one.pid is not None})
    left = f" and left process {', '.join(map(str, touched))} to be put back" if touched else ""
    return f"an earlier {entry.title} was cut short{left}"


def tidy(tools: Toolbox, journal: Journal, entry: Entry) -> None:
    """Remove the files of an operation that was cut short, and forget it.

    Raises:
        OSError: something may not be removed.
        WriteFailed: the store that the image was sent to does not answer.
    """
    if same_boot(tools, entry):
        with suppress(OSError):  # it is no matter of this job: status goes on telling of it
            entry = hugepages.give_back(tools, journal, entry)
        if tools.net.held(table_of(entry)):  # a kernel without nftables has none to be asked for
            tools.net.release(table_of(entry))
    files = files_of(tools, entry)
    clear(tools, files.placed, files.cuts, job_stands=files.job_stands)
    for remap in remaps_of(tools, entry):
        tools.files.remove(remap.path)
    if in_store(entry):
        take_away(tools, entry)
    elif entry.stage:
        sweep(Path(entry.stage).parent, lambda _owner: False)
    remove(tools.state_dir, entry.id)
    if not entry.huge_pages or not same_boot(tools, entry):
        journal.close(entry)


def helpers_at_work(tools: Toolbox) -> bool:
    """Whether call processes of a gpuckpt that has died are there, bringing its job back."""
    for pid in tools.proc.pids():
        process = tools.proc.process(pid)
        if process is not None and HELPER in process.argv and not process.zombie:
            parent = tools.proc.process(process.ppid)
            if parent is None or "gpuckpt" not in " ".join(parent.argv):
                return True
    return False


def _after_helpers(tools: Toolbox, entry: Entry, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    ends = time.monotonic() + PATIENCE
    while any(finding.blocks for finding in found) and helpers_at_work(tools):
        if time.monotonic() >= ends:
            break
        time.sleep(POLL_SECONDS)
        found = left_of(tools, entry)
    return found
