"""gc: remove what runs that are over have left on disk. Never an image, never a process's file."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuckptError
from gpuckpt.flow.leftovers import sent
from gpuckpt.flow.leftovers.found import cut_short
from gpuckpt.flow.work.journal import NEVER_TAKEN, Journal
from gpuckpt.flow.work.workspace import check_readable, kept_logs, run_folders
from gpuckpt.image.names import MANIFEST
from gpuckpt.image.stage import sweep
from gpuckpt.image.store import Image
from gpuckpt.location import is_url
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.toolbox import Toolbox

LOG_DAYS: Final = 30
_DAY: Final = 86_400.0


class GcRequest(Value, frozen=True):
    """Where to look beside the state directory; or only what would be removed."""

    folders: tuple[Path, ...] = ()
    dry_run: bool = False


class Removed(Value, frozen=True):
    """One thing that was removed, or would be; `bytes` on disk."""

    kind: str
    path: str
    bytes: int


class GcResult(Value, frozen=True):
    """What was removed, or would be, and what was left although it looks like litter, and why."""

    removed: tuple[Removed, ...]
    kept: tuple[tuple[str, str], ...]
    dry_run: bool = False

    @property
    def bytes(self) -> int:
        """How much room there is more."""
        return sum(one.bytes for one in self.removed)


def gc(tools: Toolbox, request: GcRequest, interrupts: Interrupts) -> GcResult:
    """Remove litter: of this state directory, and in the folders named.

    Stages are looked for beside every image that the journal names and in the folders, the names
    that CRIU makes (link_remap.N) in these only: an image that nobody knows of may need them.

    Raises:
        NotPrivileged: this user may not look into the state directory.
        Interrupted: stopped between two things; what was removed is gone.
    """
    check_readable(tools.state_dir)
    named, dry_run = list(request.folders), request.dry_run
    journal = Journal(tools.state_dir)
    runs = run_folders(tools.state_dir)  # first: an entry is always older than its folder
    ids, entries = journal.ids(), journal.entries()
    removed: list[Removed] = []
    kept: list[tuple[str, str]] = []
    here = (entry.image for entry in entries if entry.image and not is_url(entry.image))
    for place in sorted({Path(image).parent for image in here} | set(named)):
        interrupts.check()
        removed += _stages(place, dry_run=dry_run)
    for entry in entries:
        interrupts.check()
        if sent.in_store(entry) and cut_short(tools, entry):
            gone, left = _sent(tools, entry, dry_run=dry_run)
            removed += gone
            kept += left
    for folder in runs:
        interrupts.check()
        if folder.name not in ids:
            found = Removed("run folder", str(folder), _size(folder))
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
            removed += [found] if dry_run or not folder.exists() else []
    removed += _old_logs(tools.state_dir, dry_run=dry_run)
    removed += _never_begun(journal, dry_run=dry_run)
    if why := _needed(tools, journal, entries):
        kept += ((str(place), f"{why}: names of CRIU are left") for place in named)
    else:
        gone, left = _remaps(tools, named, dry_run=dry_run)
        removed += gone
        kept += left
    return GcResult(tuple(removed), tuple(kept), dry_run)


def _needed(tools: Toolbox, journal: Journal, entries: tuple[Entry, ...]) -> str:
    """Say why names that CRIU made may be needed by an operation, "" if by none."""
    if any(not cut_short(tools, entry) for entry in entries):
        return "a gpuckpt is at work"
    strange = journal.strange()
    return f"{strange[0].path} may be of a gpuckpt at work" if strange else ""


def _stages(place: Path, *, dry_run: bool) -> Iterator[Removed]:
    sizes = {path: _size(path) for path in sweep(place, lambda _owner: False, dry_run=True)}
    gone = sizes if dry_run else sweep(place, lambda _owner: False)
    yield from (Removed("stage", str(path), sizes.get(path, 0)) for path in gone)


def _sent(
    tools: Toolbox, entry: Entry, *, dry_run: bool
) -> tuple[list[Removed], list[tuple[str, str]]]:
    """Remove the objects of an image that was never finished; its entry is left for a repair."""
    seen = sent.look(tools, entry)
    if seen.unknown:
        return [], [(entry.stage, seen.unknown)]
    if not seen.ours:
        return [], []
    try:
        if not dry_run:
            sent.take_away(tools, entry)
    except GpuckptError as why:
        return [], [(entry.stage, f"it could not be removed: {why}")]
    return [Removed("stage", entry.stage, seen.bytes)], []


def _never_begun(journal: Journal, *, dry_run: bool) -> Iterator[Removed]:
    """Remove what is left of a run that was killed while it wrote that it begins."""
    for one in journal.strange():
        if one.why == NEVER_TAKEN and not one.path.with_suffix(".json").exists():
            yield Removed("journal", str(one.path), _size_of(one.path))
            if not dry_run:
                one.path.unlink(missing_ok=True)


def _size_of(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_blocks * 512
    return 0


def _old_logs(state_dir: Path, *, dry_run: bool) -> Iterator[Removed]:
    oldest = time.time() - LOG_DAYS * _DAY
    for log in kept_logs(state_dir):
        with suppress(OSError):  # another gpuckpt removes old ones too
            seen = log.stat()
            if seen.st_mtime < oldest:
                if not dry_run:
                    log.unlink(missing_ok=True)
                yield Removed("log", str(log), seen.st_blocks * 512)


def _remaps(
    tools: Toolbox, folders: list[Path], *, dry_run: bool
) -> tuple[list[Removed], list[tuple[str, str]]]:
    """Remove the names that CRIU made and that no known image and no process needs."""
    found = [one for folder in folders for one in tools.files.remaps(str(folder))]
    needed = {place: image for image in _images(folders) for place in _links(image)}
    users = tools.proc.users({one.path for one in found})
    removed: list[Removed] = []
    kept: list[tuple[str, str]] = []
    for one in found:
        if one.path in users:
            kept.append((one.path, f"process {users[one.path]} has it open"))
        elif image := needed.get(one.path) or needed.get(os.path.dirname(one.path)):  # noqa: PTH120
            kept.append((one.path, f"the image {image} may need it"))
        elif why := "" if dry_run else _refused(tools, one.path):
            kept.append((one.path, why))
        else:
            removed.append(Removed("remap file", one.path, one.bytes))
    return removed, kept


def _refused(tools: Toolbox, path: str) -> str:
    """Remove a name; return why that could not be, "" if it could."""
    try:
        tools.files.remove(path)
    except OSError as why:
        return f"it could not be removed: {why.strerror}"
    return ""


def _images(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except OSError:  # gone, no folder, or closed to this user
            names = []
        for place in (folder, *(folder / name for name in names)):
            if os.path.isfile(place / MANIFEST):  # noqa: PTH113 - Path.is_file would raise
                yield place


def _links(image: Path) -> Iterator[str]:
    """Return the folders in which an image finds files by names that CRIU made.

    An image of an older gpuckpt does not say which names these are; a newer one carries the files.
    """
    try:
        with Image.open(image, trust=False) as opened:
            manifest = opened.manifest
            linked = {one.name for one in manifest.outside.remaps if one.linked}
            if linked:
                yield from linked - {one.link for one in manifest.carried}
            elif manifest.options.link_remap:
                yield "/dev/shm"  # noqa: S108 - the system's, not a temporary file of ours
                yield from {os.path.dirname(one.path) for one in manifest.outside.files}  # noqa: PTH120
    except GpuckptError:
        return


def _size(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512  # noqa: PTH118
    return total
