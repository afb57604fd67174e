"""Comparing an image with a host: pure functions from facts to findings, all of them at once.

Each compared fact is a gate with an id of its own. A blocker whose remedy names --force-gate
can be sensible to override; for the others CRIU or the driver would fail all the same.
"""

from __future__ import annotations

import os
import stat
from itertools import chain
from typing import TYPE_CHECKING

from gpuckpt.image import cpuflags
from gpuckpt.image.gpuplan import gpu_plan
from gpuckpt.image.gpus import gpu_gates
from gpuckpt.model import Version, blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuckpt.image.gpuplan import GpuPlan
    from gpuckpt.image.manifest import HostRecord, Manifest
    from gpuckpt.image.outside import FileRecord
    from gpuckpt.model import Finding, HostFacts, NvidiaFacts


def gates(
    manifest: Manifest,
    host: HostFacts,
    nvidia: NvidiaFacts | None,
    criu: Version | None,
    plan: GpuPlan | None = None,
) -> tuple[Finding, ...]:
    """Return what of the host, its driver, its GPUs and its CRIU does not match the image.

    `criu` is None where there is none to compare. `plan` says which GPU goes where; without one it
    is made.
    """
    return tuple(
        chain(
            _host(manifest.host, host),
            _criu(Version(manifest.criu), criu) if criu is not None else (),
            gpu_gates(manifest, nvidia, plan or gpu_plan(manifest, nvidia)),
        )
    )


def files(manifest: Manifest, found: Mapping[str, FileRecord | None]) -> tuple[Finding, ...]:
    """Return which files outside the image are not as they were.

    `found` holds what is at each path of the manifest now, None where nothing is; a path that
    is not in it is not judged.
    """
    findings: dict[tuple[str, str], Finding] = {}
    for record in manifest.outside.files:
        if record.path in found:
            for finding in _file(record, found[record.path]):
                findings.setdefault((finding.id, finding.object), finding)
    return (*findings.values(), *_owners(manifest, found))


def _owners(manifest: Manifest, found: Mapping[str, FileRecord | None]) -> Iterator[Finding]:
    """Owners of another host are others for whole trees of files: one word for all of a kind."""
    changed: dict[tuple[str, str], set[str]] = {}
    for old in manifest.outside.files:
        now = found.get(old.path)
        if now is not None and None not in {old.uid, old.gid, now.uid, now.gid}:
            was, is_ = f"{old.uid}:{old.gid}", f"{now.uid}:{now.gid}"
            if was != is_:
                changed.setdefault((was, is_), set()).add(old.path)
    for (was, is_), paths in changed.items():
        first = min(paths)
        rest = len(paths) - 1
        more = f" and {'one more file' if rest == 1 else f'{rest} more files'}" if rest else ""
        yield blocker(
            "gate-file-owner",
            first,
            f"{first}{more} belonged to user and group {was} at the dump, and to {is_} here.",
            "Override with --force-gate gate-file-owner if the job may use them all the same, or "
            f"give them back: chown {was} {first}",
        )


def _host(old: HostRecord, new: HostFacts) -> Iterator[Finding]:
    if old.arch != new.arch:
        yield blocker(
            "gate-arch",
            new.arch,
            f"The image is from {old.arch}, this host is {new.arch}.",
            f"Restore on a host with {old.arch}.",
        )
        return
    lacking = cpuflags.missing(old.cpu_flags, new.cpu_flags)
    if lacking:
        yield blocker(
            "gate-cpu",
            "CPU",
            f"The image is from {old.cpu_model}, and this CPU ({new.cpu_model}) lacks "
            f"{', '.join(lacking)}.",
            "Restore on a CPU that has them, or override with --force-gate gate-cpu if the job "
            "uses none of them.",
        )
    if Version(new.kernel) < Version(old.kernel):
        yield warning(
            "gate-kernel",
            "kernel",
            f"The image is from kernel {old.kernel}, this host has the older {new.kernel}.",
            "If the restore fails, boot a kernel that is not older.",
        )
    if old.libc != new.libc:
        yield warning(
            "gate-libc",
            "C library",
            f"The image is from {old.libc or 'an unknown C library'}, "
            f"this host has {new.libc or 'an unknown one'}.",
            "Nothing to do: the libraries that the job has mapped are compared one by one.",
        )


def _criu(old: Version, new: Version) -> Iterator[Finding]:
    if new < old:
        yield blocker(
            "gate-criu",
            "CRIU",
            f"The image is from CRIU {old}, this host has the older {new}.",
            f"Run bin/install-criu, or name a CRIU of {old} or newer in GPUCKPT_CRIU. Override "
            "with --force-gate gate-criu only if both have the same image format.",
        )


def _file(old: FileRecord, new: FileRecord | None) -> Iterator[Finding]:
    path = old.path
    if new is None:
        yield blocker(
            "gate-file-missing",
            path,
            f"{path}, which the job has open or mapped, is not there.",
            "Put it back at the same path.",
        )
        return
    if old.mode is not None and new.mode is not None and old.mode != new.mode:
        yield _mode(path, old.mode, new.mode)
    if old.build_id and old.build_id != new.build_id:
        yield blocker(
            "gate-file-build-id",
            path,
            f"{path} is another build: it had build-id {old.build_id}, now "
            f"{new.build_id or 'it has none'}.",
            "Install the package version that the job was started with.",
        )
    if old.size is not None and old.size != new.size:
        yield _size(old, new)
    elif old.digest and new.digest and old.digest != new.digest:
        yield blocker(
            "gate-file-content",
            path,
            f"{path} is as large as it was, and other bytes stand in it.",
            "Put it back as it was, or override with --force-gate gate-file-content if the job "
            "has read of it what it needs.",
        )
    elif _written(old) and _keeps(new) and _other_time(old, new):
        yield warning(
            "gate-file-changed",
            path,
            f"{path}, which the job writes, was written to after the dump.",
            "Put it back as it was, if the job shall not go on with what is in it now.",
        )


def _mode(path: str, old: int, new: int) -> Finding:
    if stat.S_IFMT(old) != stat.S_IFMT(new):
        remedy = "Put back what was there."
    else:
        remedy = f"chmod {stat.S_IMODE(old):04o} {path}"
    return blocker(
        "gate-file-mode", path, f"{path} had mode {old:06o}, now it has {new:06o}.", remedy
    )


def _size(old: FileRecord, new: FileRecord) -> Finding:
    path, before, now = old.path, old.size or 0, new.size or 0
    reason = f"{path} had {before} bytes, now it has {now}."
    if now > before and _only_appended(old):
        remedy = "Nothing to do: the job goes on at the end of it."
        return warning("gate-file-size", path, reason, remedy)
    remedy = "Put it back as it was."
    if now > before:
        remedy += f" If it only grew: keep a copy, then truncate -s {before} {path}"
    return blocker("gate-file-size", path, reason, remedy)


def _written(record: FileRecord) -> bool:
    return record.flags & os.O_ACCMODE != os.O_RDONLY


def _keeps(record: FileRecord) -> bool:
    """Whether what is written to it stays there: a device's time is that of anybody's last use."""
    return record.mode is None or stat.S_ISREG(record.mode)


def _other_time(old: FileRecord, new: FileRecord) -> bool:
    return None not in {old.mtime_ns, new.mtime_ns} and old.mtime_ns != new.mtime_ns


def _only_appended(record: FileRecord) -> bool:
    # CRIU's own rule: such a file is a log, its size is not compared.
    return bool(record.flags & os.O_APPEND) and record.flags & os.O_ACCMODE == os.O_WRONLY
