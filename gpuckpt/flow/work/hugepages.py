"""Transparent huge pages set to `always` for the length of an operation, and put back after it.

The setting is the whole host's. The value that was found stands in the operation's journal entry
before it is touched, and operations that rely on it at once see each other there, under the
journal's lock: only the last of them puts it back, and `repair` does for one that was killed. What
somebody else has set meanwhile is left alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gpuckpt.errors import GpuckptError
from gpuckpt.model import warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.work.journal import Entry, Journal
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.flow.work.undo import Undo
    from gpuckpt.model import Finding, HostFacts

FILE: Final = "/sys/kernel/mm/transparent_hugepage/enabled"
ALWAYS: Final = "always"
LEFT: Final = f"transparent huge pages are left at {ALWAYS}"
# Measured, 16 GiB on an H200: 3.4 s less of 9.7 s for the driver's copy, as much again for CRIU;
# what is saved of less is not worth a setting of the whole host.
WORTH: Final = 4 << 30


class Holder(Protocol):
    """Who has the journal entry of an operation, and writes on in it."""

    entry: Entry


def helps(host: HostFacts, gpu_bytes: int) -> bool:
    """Whether a job with so much GPU memory is copied clearly faster with huge pages."""
    return host.huge_pages not in {"", ALWAYS} and gpu_bytes >= WORTH


def begin(operation: Operation, holder: Holder, undo: Undo, *, gpu: bool) -> None:
    """Set it if the job is one on a GPU, and tell what came of it.

    Raises:
        DumpFailed, RestoreFailed: the journal cannot be written, so nothing was set.
    """
    reporter = operation.record.reporter
    if not gpu:
        reporter.note("no process of the job uses CUDA: --thp does nothing")
        return

    def back() -> None:
        holder.entry = give_back(operation.tools, operation.journal, holder.entry)

    undo.add(LEFT, back)
    words, well = _take(operation.tools, operation.journal, holder)
    (reporter.note if well else reporter.warn)(words)


def end(operation: Operation, holder: Holder) -> tuple[Finding, ...]:
    """Put it back after an operation that went well: that it cannot be, twice, is only told."""
    for last in (False, True):
        try:
            holder.entry = give_back(operation.tools, operation.journal, holder.entry)
        except (GpuckptError, OSError) as why:
            if last:
                return (_not_back(holder.entry, why),)
        else:
            break
    return ()


def close(operation: Operation, entry: Entry) -> None:
    """Forget the operation, unless a repair has the setting to put back."""
    if not entry.huge_pages:
        operation.journal.close(entry)


def _take(tools: Toolbox, journal: Journal, holder: Holder) -> tuple[str, bool]:
    """Set it; return what came of it in words, and whether it is set."""
    with journal.locked():
        now = tools.host.facts().huge_pages
        if not now:
            return "this kernel has no transparent huge pages: --thp does nothing", False
        first = now
        if now == ALWAYS:
            others = _relying(tools, journal, holder.entry)
            first = next((one.huge_pages for one in others), "")
        if not first:
            return "transparent huge pages are always set here: --thp does nothing", True
        holder.entry = journal.step(holder.entry, holder.entry.step, huge_pages=first)
        try:
            tools.host.set_huge_pages(ALWAYS)
        except OSError as why:  # what is in the entry is looked at again in the end
            reason = why.strerror or why
            return f"{FILE} cannot be set ({reason}): it goes on without --thp", False
    return f"transparent huge pages are set to {ALWAYS} meanwhile, they were {first}", True


def give_back(tools: Toolbox, journal: Journal, entry: Entry) -> Entry:
    """Put it back unless others rely on it, or somebody has changed it; return the entry.

    Raises:
        OSError: it cannot be set.
    """
    if not entry.huge_pages:
        return entry
    with journal.locked():
        others = tuple(_relying(tools, journal, entry))
        if not any(tools.proc.alive(one.owner) for one in others):
            if tools.host.facts().huge_pages == ALWAYS:
                tools.host.set_huge_pages(entry.huge_pages)
            # of those that were killed nothing is left to be put back any more
            for one in others:
                with suppress(GpuckptError):
                    journal.step(one, one.step, huge_pages="")
        with suppress(GpuckptError):
            return journal.step(entry, entry.step, huge_pages="")
    return msgspec.structs.replace(entry, huge_pages="")


def left(tools: Toolbox, journal: Journal, entry: Entry) -> Iterator[Finding]:
    """Tell what an operation that was killed has left of it; nothing while others rely on it."""
    if not entry.huge_pages:
        return
    facts = tools.host.facts()
    if entry.boot_id != facts.boot_id or facts.huge_pages != ALWAYS:
        return
    if not any(tools.proc.alive(one.owner) for one in _relying(tools, journal, entry)):
        reason = (
            f"An operation that was cut short has set it to {ALWAYS}; it was {entry.huge_pages}."
        )
        yield warning("left-huge-pages", FILE, reason, "`gpuckpt repair` puts it back.")


def _not_back(entry: Entry, why: Exception) -> Finding:
    """Return what to say where all is well but this."""
    return warning(
        "huge-pages-left",
        FILE,
        f"It was {entry.huge_pages} and could not be put back: {why}.",
        f"Put it back by `gpuckpt repair`, or: echo {entry.huge_pages} > {FILE}",
    )


def _relying(tools: Toolbox, journal: Journal, mine: Entry) -> Iterator[Entry]:
    """Return the other entries of this boot that have set it, oldest first."""
    boot = tools.host.facts().boot_id
    for one in journal.entries():
        if one.huge_pages and one.id != mine.id and one.boot_id == boot:
            yield one
