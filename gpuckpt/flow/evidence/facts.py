"""What an image says of itself, for the evidence: what was saved, of which job, on which host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.evidence import derived
from gpuckpt.flow.evidence.document import Job, Saved, SavedFile

if TYPE_CHECKING:
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.store import Image


def saved(image: Image) -> Saved:
    """Return what was saved."""
    manifest = image.manifest
    files = tuple(
        SavedFile(
            name=one.name,
            raw=one.raw_size,
            stored=one.stored_size,
            frames=one.frames,
            table=one.table_blake3,
        )
        for one in manifest.files
    )
    outside = manifest.outside.files
    return Saved(
        image_id=manifest.image_id,
        format=manifest.format,
        created=manifest.created,
        gpuckpt=manifest.gpuckpt,
        criu=manifest.criu,
        needs=manifest.needs,
        labels=manifest.labels,
        seal=image.seal,
        tables=derived.tables(files),
        files=files,
        raw=manifest.totals.raw,
        stored=manifest.totals.stored,
        pages=manifest.totals.pages,
        ratio=derived.ratio(manifest.totals.raw, manifest.totals.stored),
        carried=len(manifest.carried),
        carried_bytes=sum(one.bytes for one in manifest.carried),
        referenced=len(outside),
        with_digest=sum(bool(one.digest) for one in outside),
    )


def job(manifest: Manifest) -> Job:
    """Return what the job was."""
    root = manifest.tree[0]
    uses = manifest.nvidia.uses if manifest.nvidia else ()
    return Job(
        root_pid=manifest.root_pid,
        command=" ".join(root.argv) or root.comm,
        cwd=root.cwd,
        pids=tuple(one.pid for one in manifest.tree),
        cuda_pids=tuple(manifest.cuda),
        uses=uses,
        gpu_bytes=sum(one.bytes for one in uses),
    )
