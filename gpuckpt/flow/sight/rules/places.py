"""Rules about where files lie: out of CRIU's reach, or on another machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.sight.rules.rule import Rule, descriptor
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.sight.facts import DumpFacts
    from gpuckpt.flow.sight.rules.rule import DumpChoices
    from gpuckpt.model import Finding

_KERNEL_OWN: Final = re.compile(r"/(secretmem|dmabuf:)")  # no place at all: rules of their own
_PROC: Final = re.compile(r"/proc/(\d+)")
_NFS: Final = frozenset({"nfs", "nfs4"})
_SILLY: Final = re.compile(r".*/\.nfs[0-9a-f]{16,}")


def unreachable(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU looks a file up by its mount and its name, and gives up if that does not lead there."""
    for one in facts.look.odd_files:
        thing = descriptor(one.fd, one.path)
        if one.problem == "mount" and one.path.startswith("/memfd:"):
            continue
        if one.problem == "mount" and not (_KERNEL_OWN.match(one.path) and one.fd is None):
            yield blocker(
                "file-unreachable",
                thing,
                "The file is on no mount that the job can see: an unmounted one, one of another "
                "mount namespace, or a POSIX message queue.",
                "Let the job close it (for a message queue: start the job without mq_open).",
                one.pid,
            )
        elif one.problem == "hidden":
            yield blocker(
                "file-unreachable",
                thing,
                "The name of the file leads to another file or to none, as when something was "
                "mounted over it.",
                "Unmount what hides the file, or let the job close it.",
                one.pid,
            )


def proc_folder(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU 4.2.1 takes the folder of a process outside for that of one that has ended."""
    for task in facts.look.tasks:
        for fd in task.descriptors:
            found = _PROC.fullmatch(fd.target) if fd.kind == "folder" else None
            if found and int(found[1]) not in facts.tree.pids:
                yield blocker(
                    "proc-folder",
                    descriptor(fd.fd, fd.target),
                    f"The process holds the folder of process {found[1]} open, which is outside "
                    "the tree; a restore fails at it.",
                    "Let the job close it, or start it without what watches other processes.",
                    task.process.pid,
                )


def denied(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """CRIU opens every mapped file; a server that squashes root does not let it."""
    for one in facts.look.odd_files:
        if one.problem == "denied":
            squash = one.filesystem in _NFS
            yield blocker(
                "mapped-denied",
                descriptor(one.fd, one.path),
                "Root may not open this mapped file"
                + (": the NFS server squashes root." if squash else "."),
                "Export it with no_root_squash, or make the file readable for all (chmod o+r)."
                if squash
                else "Make the file readable for root.",
                one.pid,
            )


def silly_renamed(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """NFS keeps a deleted file under another name as long as somebody has it open.

    The name goes with the process, and a restore finds nothing.
    """
    for one in facts.look.odd_files:
        if one.filesystem in _NFS and _SILLY.fullmatch(one.path):
            yield blocker(
                "nfs-deleted",
                descriptor(one.fd, one.path),
                "The file was deleted on NFS, which keeps it only until the job ends: no restore "
                "would find it.",
                "Let the job close it, or open a copy of it that has a name.",
                one.pid,
            )


def remote(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """Files of another machine must be there, unchanged, where the job is restored."""
    seen: dict[str, list[str]] = {}
    for one in facts.look.odd_files:
        if one.remote and not _SILLY.fullmatch(one.path):
            seen.setdefault(one.filesystem, []).append(one.path)
    for filesystem, paths in seen.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield warning(
            "remote-file",
            f"{paths[0]}{more}",
            f"The job uses files on {filesystem}, which the restoring host must have mounted too.",
            "Mount it there in the same place, and leave the files as they are.",
        )


def watch(facts: DumpFacts, _: DumpChoices) -> Iterator[Finding]:
    """A watch is kept by a file handle; proc, sysfs and most overlays give none that leads back."""
    for one in facts.look.watches:
        where = f"on {one.place} ({one.filesystem})" if one.place else "on an unmounted place"
        yield blocker(
            "watch-lost",
            f"fd {one.fd} {one.kind}",
            f"The process watches a file {where} that CRIU cannot find again.",
            "Start the job without watching there (tail --disable-inotify, a watcher that polls).",
            one.pid,
        )


RULES: Final[tuple[Rule, ...]] = (unreachable, proc_folder, denied, silly_renamed, remote, watch)
