"""Words for things several commands speak of: a job, its GPUs, sizes, the pause."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gpuckpt.cli import units
from gpuckpt.model import TcpPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.request import DumpRequest, FileChoice, Proved
    from gpuckpt.image.manifest import Manifest, ProcessRecord
    from gpuckpt.timing import Receipt

_LONGEST_COMMAND = 120
THP = "--thp: huge pages meanwhile save a third of the driver's copy, a quarter of CRIU's time"


def command_line(*words: str) -> str:
    """Return words as a shell takes them."""
    return shlex.join(words)


def dump_options(request: DumpRequest) -> Iterator[str]:
    """Return the options that say what is dumped how, as they were asked for."""
    if request.output is not None:
        yield from ("-o", str(request.output))
    if request.leave_running:
        yield "--leave-running"
    if request.tcp is not TcpPolicy.NONE:
        yield from ("--tcp", request.tcp)
    if request.file_locks:
        yield "--file-locks"
    if request.ghost_limit != 1 << 30:
        whole, rest = divmod(request.ghost_limit, 1 << 20)
        yield from ("--ghost-limit", str(request.ghost_limit) if rest else f"{whole}M")
    yield from _files(request.files)
    if request.quiesce:
        yield "--quiesce"
    for name in sorted(request.ignore):
        yield from ("--ignore", name)


def _files(choice: FileChoice) -> Iterator[str]:
    if choice.mode != "auto":
        yield from ("--files", choice.mode)
    for path in choice.include:
        yield from ("--include", path)
    for pattern in choice.exclude:
        yield from ("--exclude", pattern)
    if choice.full:
        yield from ("--hash-files", "full")


def proved(what: Proved) -> str:
    """Say what a proof of memory has shown."""
    said = f"proved: {units.size(what.bytes)}, {units.count(what.pages, 'page')}, identical"
    masked = (
        f"{units.count(number, 'byte')} differ by right ({law})"
        for law, number in what.masked.items()
    )
    return ", ".join((said, *masked))


def command(process: ProcessRecord) -> str:
    """Return the command line of a process, or its short name in brackets, not too long."""
    line = " ".join(process.argv) or f"[{process.comm}]"
    return line if len(line) <= _LONGEST_COMMAND else line[: _LONGEST_COMMAND - 3] + "..."


def job(manifest: Manifest) -> str:
    """Return the root's command with the number of processes and how many are on a GPU."""
    root = next((one for one in manifest.tree if one.pid == manifest.root_pid), manifest.tree[0])
    parts = [f"pid {manifest.root_pid}", units.count(len(manifest.tree), "process", "processes")]
    parts.append(on_gpu(len(manifest.cuda)))
    return f"{command(root)} ({', '.join(parts)})"


def on_gpu(number: int) -> str:
    """Return how many processes of a job are on a GPU."""
    return f"{number} on the GPU" if number else "none on a GPU"


def sizes(manifest: Manifest) -> str:
    """Return raw and stored size with their ratio."""
    totals = manifest.totals
    text = f"{units.size(totals.raw)} raw -> {units.size(totals.stored)} stored"
    factor = units.ratio(totals.raw, totals.stored)
    return f"{text} (ratio {factor})" if factor else text


def carried(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Return how many files went along, if any did."""
    if manifest.carried:
        whole = units.size(sum(one.bytes for one in manifest.carried))
        yield "files", f"{units.count(len(manifest.carried), 'file')} went along, {whole}"


def pause(duration: float, *, running: bool) -> str:
    """Return for how long the job stood still, or that it still does."""
    return units.seconds(duration) + ("" if running else " until the image was complete")


def lock(receipt: Receipt, number: int) -> str:
    """Return how several processes were held at once; nothing of one alone, which waits for none.

    The driver can hold no rank that waits for one it holds already, so that can take many rounds.
    """
    found = next((one for one in receipt.phases if one.name == "lock"), None)
    if found is None or number < 2:  # noqa: PLR2004 - see above
        return ""
    rounds = units.count(max(1, found.rounds), "round")
    return f"{number} processes held at once, {rounds}, {units.seconds(found.seconds)}"
