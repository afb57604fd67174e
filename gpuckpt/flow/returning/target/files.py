"""Files and names that an image needs, as they are where the job is going to be."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.flow.returning.target.fileplan import Act
from gpuckpt.flow.returning.target.standing import State
from gpuckpt.image.outside import FileRecord
from gpuckpt.model import Carriage
from gpuckpt.tools.pidspace import own_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuckpt.flow.returning.target.fileplan import FileStep
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.outside import RemapRecord
    from gpuckpt.tools.files import HostFile


def fake_link(remap: RemapRecord) -> str:
    """Return the name CRIU 4.2.1 takes for a linked file whose own has been taken meanwhile."""
    return f"{remap.path}.cr_link"


def is_there(tools: Toolbox, path: str, *, apart: bool) -> bool:
    """Whether a name means something where the job will be; its own memory begins empty."""
    fresh = apart and own_memory(path)
    return not fresh and tools.files.look(path, build_id=False) is not None


def files(
    tools: Toolbox, manifest: Manifest, steps: Iterable[FileStep], *, apart: bool
) -> dict[str, FileRecord | None]:
    """Look at the files outside the image; what is going to be made, or cut, is as it was."""
    made = {
        path
        for step in steps
        if step.standing and _as_recorded(step)
        for path in step.standing.file.names
    }
    told = {
        path
        for step in steps
        if step.act is Act.LEAVE and step.standing and step.standing.state is not State.THERE
        for path in step.standing.file.names
    }
    folders = {one.path for one in manifest.outside.folders}
    found: dict[str, FileRecord | None] = {}
    for record in manifest.outside.files:
        if record.path in made:
            found[record.path] = record
            continue
        now = tools.files.look(record.path, build_id=bool(record.build_id))
        if now is not None and apart and own_memory(record.path) and not stat.S_ISDIR(now.mode):
            now = None  # folders are made there as they are here, and nothing else
        if now is None and record.path in folders:
            found[record.path] = record
            continue
        found[record.path] = (
            None if now is None else _record(record, now, timed=record.path not in told)
        )
    return found | _read(tools, manifest.outside.files, found)


def _read(
    tools: Toolbox, records: Iterable[FileRecord], found: Mapping[str, FileRecord | None]
) -> dict[str, FileRecord | None]:
    """Add the digests of files that are as large as they were, if one was taken at the dump."""
    alike: dict[str, tuple[FileRecord, FileRecord]] = {}
    for old in records:
        now = found.get(old.path)
        if old.digest and now is not None and now is not old and old.size in {None, now.size}:
            alike[old.path] = old, now
    told: dict[str, FileRecord | None] = {}
    for sampled in (True, False):
        paths = [path for path, (old, _) in alike.items() if old.sampled == sampled]
        for path, digest in tools.software.digests(paths, full=not sampled).items():
            if digest is not None:
                told[path] = replace(alike[path][1], digest=digest.hex, sampled=digest.sampled)
    return told


def _as_recorded(step: FileStep) -> bool:
    """Whether a file will be as it was; one that is refused is told of as such, and no more."""
    one = step.standing
    if one is None or step.act is not Act.LEAVE:
        return one is not None and one.state is not State.TAKEN
    return one.state is State.THERE and one.file.why is not Carriage.NEEDED


def _record(old: FileRecord, now: HostFile, *, timed: bool) -> FileRecord:
    """Write down what is there; when it was written to says nothing new of what is kept."""
    return FileRecord(
        path=old.path,
        size=now.size,
        mode=now.mode,
        build_id=now.build_id,
        mtime_ns=now.mtime_ns if timed else None,
        flags=old.flags,
        uid=now.uid,
        gid=now.gid,
    )
