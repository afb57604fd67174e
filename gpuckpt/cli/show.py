"""gpuckpt show: what is in an image, and what does a restore of it need?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuckpt.cli import describe, engine, gpus, timeline, units, values
from gpuckpt.cli.context import Application
from gpuckpt.cli.options import option
from gpuckpt.cli.page import Fields, Next, Outcome, Page, Paragraph, Table, Timeline, Tone
from gpuckpt.cli.suggest import images
from gpuckpt.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.cli.page import Block
    from gpuckpt.flow.show import ShowResult
    from gpuckpt.flow.work.history import Record
    from gpuckpt.image.manifest import Manifest

_MOST_FILES = 12
_MOST_RECEIPTS = 6

Shown = Annotated[
    Location,
    typer.Argument(
        metavar="IMAGE",
        help="The folder of the image, or its URL; with --timeline also the file of a receipt.",
        parser=values.location("IMAGE"),
        autocompletion=images,
    ),
]
Drawn = Annotated[
    bool,
    option(
        "--timeline",
        help="Show how the dump went, and the restores made here: phases, pauses, waits.",
    ),
]


def show(app: Application, image: Shown, *, timeline: Drawn = False) -> int:
    """Show what an image holds and what its restore needs.

    Works for images this gpuckpt could not restore, too.
    """
    from gpuckpt.flow.show import receipt
    from gpuckpt.flow.show import show as look

    if timeline and isinstance(image, Path) and image.is_file():
        return app.show(receipts(image, (receipt(image),)))
    result = look(image, app.state_dir)
    if timeline:
        return app.show(receipts(result.path, result.records, result))
    return app.show(outcome(result))


def receipts(
    path: Location, records: tuple[Record, ...], result: ShowResult | None = None
) -> Outcome:
    """Draw receipts; of many the newest."""
    shown = records[-_MOST_RECEIPTS:]
    if (first := records[0]) not in shown:  # the dump itself
        shown = (first, *shown[1:])
    blocks = [block for one in shown for block in timeline.of_record(one)]
    if more := len(records) - len(shown):
        blocks.append(Paragraph(f"and {more} more: --json lists all"))
    payload = {
        "path": path,
        "unknown_needs": result.unknown_needs if result else (),
        "manifest": result.manifest if result else None,
        "receipts": records,
    }
    quiet = result.manifest.image_id if result else ""
    return Outcome(payload, Page("", Tone.NEUTRAL, tuple(blocks)), quiet=quiet)


def outcome(result: ShowResult) -> Outcome:
    """Lay out the manifest for people; programs get all of it."""
    manifest = result.manifest
    blocks: list[Block] = [Fields(tuple(_summary(result)))]
    if result.unknown_needs:
        names = ", ".join(result.unknown_needs)
        blocks.append(Paragraph(f"This gpuckpt cannot restore it: unknown need {names}", Tone.BAD))
    blocks.append(_tree(manifest))
    if manifest.nvidia is not None and manifest.nvidia.uses:
        blocks.append(_gpus(manifest))
    blocks.append(Fields(tuple(_needs(manifest)), heading="needs"))
    blocks.append(Timeline("how the dump went", manifest.receipt))
    blocks.append(Next((describe.command_line("gpuckpt", "restore", str(result.path)),)))
    return Outcome(
        payload={
            "path": result.path,
            "unknown_needs": result.unknown_needs,
            "manifest": manifest,
            "receipts": result.records,
        },
        page=Page("", Tone.NEUTRAL, tuple(blocks)),
        quiet=manifest.image_id,
    )


def _summary(result: ShowResult) -> Iterator[tuple[str, str]]:
    manifest = result.manifest
    yield "image", str(result.path)
    yield "id", manifest.image_id
    yield "job", describe.job(manifest)
    yield "dumped", f"{manifest.created} on {manifest.host.hostname}"
    if manifest.host.addresses:
        yield "reached at", " ".join(manifest.host.addresses)
    yield "by", f"gpuckpt {manifest.gpuckpt}, CRIU {manifest.criu}"
    yield "size", describe.sizes(manifest)
    yield "memory", f"{units.size(manifest.totals.pages)} of pages"
    for name, value in manifest.labels.items():
        yield "label", f"{name}={value}"
    if manifest.options.leave_running:
        yield "note", "the job went on after this dump: what it wrote since is written again"


def _tree(manifest: Manifest) -> Table:
    depths: dict[int, int] = {}
    for process in manifest.tree:
        depths[process.pid] = depths.get(process.ppid, -1) + 1
    return Table(
        "processes",
        ("PID", "THREADS", "CUDA", "UID", "COMMAND"),
        tuple(
            (
                str(process.pid),
                str(len(process.threads)),
                process.cuda,
                str(process.uid),
                "  " * depths[process.pid] + describe.command(process),
            )
            for process in manifest.tree
        ),
        right=frozenset({0, 1, 3}),
    )


def _gpus(manifest: Manifest) -> Table:
    known = {gpu.uuid: gpu for gpu in manifest.nvidia.gpus} if manifest.nvidia else {}
    uses = manifest.nvidia.uses if manifest.nvidia else ()
    limits = {one.pid: one.visible for one in manifest.tree if one.visible is not None}
    rows = []
    for use in uses:
        gpu = known.get(use.uuid)
        index, name = (str(gpu.index), gpu.name) if gpu else ("?", "unknown")
        saw = f"{len(limits[use.pid])} of {len(known)}" if use.pid in limits else "all"
        row = (index, gpus.short(use.uuid), str(use.pid), units.size(use.bytes), name, saw)
        rows.append(row)
    columns = ("GPU", "UUID", "PID", "BYTES", "MODEL", "SAW")
    shown = len(columns) if limits else -1  # older images do not tell who saw what
    cells = tuple(row[:shown] for row in rows)
    return Table("on the GPUs", columns[:shown], cells, right=frozenset({0, 2, 3}))


def _needs(manifest: Manifest) -> Iterator[tuple[str, str]]:
    host, outside = manifest.host, manifest.outside
    yield "host", f"{host.arch}, kernel {host.kernel}, libc {host.libc}, {host.cpu_model}"
    yield "criu", f"{manifest.criu} or newer"
    yield from _nvidia_needs(manifest)
    yield from engine.rows(manifest)
    yield "room", f"{units.size(manifest.totals.pages)} of memory"
    yield "pids", " ".join(map(str, manifest.ids))
    for one in outside.listeners:
        yield "port", f"{one.protocol} {one.address}:{one.port}"
    if outside.files:
        yield "files", f"{units.count(len(outside.files), 'file')}, unchanged:"
    shown = sorted(outside.files, key=lambda file: file.build_id != "")[:_MOST_FILES]
    for file in shown:
        about = units.size(file.size) if file.size is not None else ""
        yield "file", f"{file.path} {about}".rstrip()
    if len(outside.files) > len(shown):
        yield "file", f"and {len(outside.files) - len(shown)} more: --json lists all"
    yield from _carried(manifest)
    for terminal in outside.terminals:
        yield "terminal", f"one in place of {terminal}"


def _carried(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Files that come along: nobody has to bring them."""
    if manifest.carried:
        whole = units.size(sum(one.bytes for one in manifest.carried))
        count = units.count(len(manifest.carried), "file")
        yield "carried", f"{count} in the image, {whole}:"
    for one in manifest.carried[:_MOST_FILES]:
        yield "file", f"{one.path} {units.size(one.bytes)}"
    if (more := len(manifest.carried) - _MOST_FILES) > 0:
        yield "file", f"and {more} more: --json lists all"


def _nvidia_needs(manifest: Manifest) -> Iterator[tuple[str, str]]:
    nvidia = manifest.nvidia
    if nvidia is None or not manifest.cuda:
        yield "gpu", "none"
        return
    yield "driver", nvidia.driver
    models = Counter(gpu.name for gpu in nvidia.gpus)
    linked = all(sum(map(bool, gpu.nvlinks)) == len(nvidia.gpus) - 1 for gpu in nvidia.gpus)
    ties = ", each with NVLink to all others" if linked and len(nvidia.gpus) > 1 else ""
    yield "gpu", ", ".join(f"{number} x {name}" for name, number in models.items()) + ties
