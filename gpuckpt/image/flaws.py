"""What a manifest may say well-formed and must not say all the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuckpt.errors import ImageDamaged
from gpuckpt.image import carried
from gpuckpt.image.frames import possible
from gpuckpt.image.names import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.manifest import FileEntry, Manifest, ProcessRecord

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LARGEST_PID = 1 << 22
_LARGEST_UID = (1 << 32) - 1
_UMASK = 0o777
_LARGEST_CPU = _LARGEST_PORT = (1 << 16) - 1


def flaws(manifest: Manifest) -> Iterator[str]:
    """Yield what cannot be, in words that finish 'the manifest cannot be trusted'."""
    yield from _tree_flaws(manifest)
    names: set[str] = set()
    for entry in manifest.files:
        if entry.name in names:
            yield f"file {entry.name!a} is listed twice"
        names.add(entry.name)
        yield from _entry_flaws(entry)
    raw = sum(entry.raw_size for entry in manifest.files)
    stored = sum(entry.stored_size for entry in manifest.files)
    if (manifest.totals.raw, manifest.totals.stored) != (raw, stored):
        yield "its totals are not the sums of its files"
    yield from carried.flaws(manifest.carried, manifest.files, manifest.outside.folders)
    if manifest.totals.pages > raw:
        yield "its totals claim more bytes of pages than there are bytes"


def _tree_flaws(manifest: Manifest) -> Iterator[str]:
    pids = [process.pid for process in manifest.tree]
    if len(set(pids)) != len(pids):
        yield "a pid is listed twice"
    if not pids or pids[0] != manifest.root_pid:
        yield "its tree does not begin with its root"
    more = (n for process in manifest.tree for n in (*process.threads, process.host_pid))
    if min(pids, default=0) < 1 or max((*pids, *more, *manifest.ids), default=0) > _LARGEST_PID:
        yield "a number in it can be no pid"
    yield from (f"process {n} is not in its tree" for n in manifest.quiesced if n not in pids)
    for process in manifest.tree:
        if max(process.uid, process.gid) > _LARGEST_UID:
            yield f"process {process.pid} has an impossible owner"
        yield from _binding_flaws(process)
    start = manifest.start
    if start and (max(start.groups, default=0) > _LARGEST_UID or (start.umask or 0) > _UMASK):
        yield "its root cannot have been started so"
    for listener in manifest.outside.listeners:
        if listener.port > _LARGEST_PORT:
            yield f"{listener.port} is no port"


def _binding_flaws(process: ProcessRecord) -> Iterator[str]:
    for binding in process.bound:
        if not set(binding.threads) <= set(process.threads):
            yield f"process {process.pid} binds threads of another"
        if not 0 <= max(binding.cpus, default=-1) <= _LARGEST_CPU:
            yield f"process {process.pid} is bound to CPUs that cannot be"


def _entry_flaws(entry: FileEntry) -> Iterator[str]:
    try:
        check_name(entry.name)
    except ImageDamaged as why:
        yield why.message
    digests = filter(None, (entry.stored_blake3, entry.table_blake3 or "none"))
    if not all(map(_DIGEST.fullmatch, digests)):
        yield f"file {entry.name!a} has no BLAKE3 digests"
    if not possible(entry.frames, entry.raw_size, entry.stored_size, entry.table_version):
        yield f"file {entry.name!a} has sizes that cannot be"
