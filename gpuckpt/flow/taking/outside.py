"""What the restore of a job will look for outside the image, as it was when the job was frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.flow.sight.rules.gpu import GPU_NODE
from gpuckpt.flow.taking.folders import folders
from gpuckpt.image.outside import (
    ConnectionRecord,
    FileRecord,
    ListenerRecord,
    LockRecord,
    NameRecord,
    Outside,
    PipeRecord,
    RemapRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.taking.usage import Usage
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.outside import PythonRecord
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.look import Look
    from gpuckpt.tools.openfiles import FileRef, OpenFiles


def outside(
    tools: Toolbox,
    look: Look,
    opened: OpenFiles,
    carried: Iterable[CarriedFile],
    *,
    pythons: tuple[PythonRecord, ...],
    usage: Usage,
) -> Outside:
    """List it: what CRIU recorded as `opened`, and what is known of its `usage`."""
    kept = [one for one in opened.files if not GPU_NODE.fullmatch(one.path)]
    paths = (*opened.sockets, *(name for one in carried for name in one.names or (one.link,)))
    return Outside(
        files=tuple(_file(tools, one, usage) for one in kept),
        listeners=tuple(
            ListenerRecord(protocol=one.protocol, address=one.address, port=one.port, dual=one.dual)
            for one in opened.listeners
        ),
        terminals=opened.terminals,
        connections=tuple(
            ConnectionRecord(
                local=one.local,
                local_port=one.local_port,
                remote=one.remote,
                remote_port=one.remote_port,
                closing=one.closing,
            )
            for one in opened.connections
        ),
        sockets=opened.sockets,
        names=tuple(NameRecord(name=one.raw, kind=one.kind) for one in opened.names),
        locks=_locks(look),
        servers=tuple(sorted({one.name for one in look.peers if one.found_again})),
        remaps=tuple(
            RemapRecord(path=one.path, name=one.name, linked=one.linked) for one in opened.remaps
        ),
        pythons=pythons,
        folders=folders(tools, paths, look.space),
        pipes=tuple(
            PipeRecord(pid=one.pid, fd=one.fd, writes=one.writes, holder=one.holder.comm)
            for one in look.pipes
        ),
    )


def _locks(look: Look) -> tuple[LockRecord, ...]:
    """List what CRIU takes again, without a limit: ranges and leases are left to it."""
    nameless = {one.path for one in look.deleted}
    found = {
        (one.path, one.kind, one.exclusive)
        for one in look.locks
        if one.whole and one.kind in {"flock", "posix", "ofdlck"} and one.path not in nameless
    }
    return tuple(
        LockRecord(path=path, kind=kind, exclusive=exclusive)
        for path, kind, exclusive in sorted(found)
    )


def _file(tools: Toolbox, file: FileRef, usage: Usage) -> FileRecord:
    """Say what a file is; its digest was made beforehand, if it stays where it is."""
    now = tools.files.look(usage.reach(file.path), build_id=False)
    known = usage.of(file.path)
    return FileRecord(
        path=file.path,
        size=file.size,
        mode=file.mode,
        build_id=file.build_id or known.build_id,
        mtime_ns=now.mtime_ns if now else None,
        flags=file.flags,
        uid=now.uid if now else None,
        gid=now.gid if now else None,
        position=file.position,
        uses=usage.uses(file.path),
        digest="" if file.build_id else known.digest,
        sampled=known.sampled and not file.build_id,
    )
