"""Rules about files and folders: what must be there as it was, and where names must be made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.returning.target.files import fake_link
from gpuckpt.flow.returning.target.ground import folder_of
from gpuckpt.flow.returning.target.rule import Rule, some
from gpuckpt.image import compare
from gpuckpt.model import blocker, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.outside import RemapRecord
    from gpuckpt.model import Finding

_SOCKET_PATH: Final = 107  # sun_path but for the zero at its end


def files(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """CRIU compares size, mode and build-id of what is open or mapped, one file after the other."""
    yield from compare.files(manifest, facts.files)


def remaps(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A deleted file gets a name for a moment: its folder must take one, and none be there."""
    carried = {one.link for one in manifest.carried}  # their names are made; see carried.py
    for one in manifest.outside.remaps:
        if one.linked and one.name not in carried and not facts.names.get(one.name, True):
            yield _link_gone(one)
        elif one.linked and facts.names.get(one.path) and facts.names.get(fake_link(one)):
            yield _in_the_way(fake_link(one), one.path)
        elif not one.linked and facts.names.get(one.name):
            yield _in_the_way(one.name, one.path)
        elif one.name not in carried and not _takes_names(one, facts):
            yield _no_folder(one)


def _link_gone(one: RemapRecord) -> Finding:
    return blocker(
        "remap-missing",
        one.name,
        f"{one.name}, under which the dump kept the deleted {one.path}, is not here: it is not in "
        "the image, and a restore uses it up.",
        "Restore once, where the dump was made (before its next boot, if this is in /dev/shm), or "
        "copy the file from there with owner and mode.",
    )


def _in_the_way(name: str, path: str) -> Finding:
    return blocker(
        "remap-in-the-way",
        name,
        f"A restore makes this name for the deleted {path}, and it is there already.",
        f"It is left over from a restore that was cut short: rm {name}",
    )


def _no_folder(one: RemapRecord) -> Finding:
    return blocker(
        "remap-folder",
        folder_of(one.path),
        f"A restore makes a name for the deleted {one.path}, and no names can be made there.",
        "Make the folder, or mount it writable.",
    )


def sockets(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A Unix socket is bound at its path again, so that its folder must be there."""
    missing: dict[str, list[str]] = {}
    for path in manifest.outside.sockets:
        if not facts.writable.get(folder_of(path), True):
            missing.setdefault(folder_of(path), []).append(path)
    for folder, paths in missing.items():
        yield blocker(
            "socket-folder",
            folder,
            f"The job's Unix socket {some(paths)} is made again, and this folder takes no names.",
            "Make the folder, or mount it writable.",
        )


def locks(_: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """CRIU 4.2.1 waits for a lock that somebody has, and nothing but its deadline ends that."""
    for path, (pid, comm) in facts.locked.items():
        who = f"process {pid} ({comm})" if pid > 0 else "a process that the kernel does not name"
        yield blocker(
            "lock-taken",
            path,
            f"The job had locked {path}, and {who} has that lock now.",
            "Wait until it lets go, or end it.",
            pid if pid > 0 else None,
        )


def servers(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """A datagram socket is connected to its server's path again, and the restore fails without."""
    for path in manifest.outside.servers:
        if not facts.names.get(path, True):
            yield blocker(
                "server-missing",
                path,
                f"The job sends to the Unix socket {path} of another program, and it is not here.",
                "Start the server (for the system log: systemd-journald or a syslog daemon).",
            )


def relocated(manifest: Manifest, facts: TargetFacts) -> Iterator[Finding]:
    """What CRIU opens is found at its new place; what the program opens by name is not."""
    for old, new in facts.moved:
        yield warning(
            "paths-remembered",
            f"{old}={new}",
            f"What the job has open comes from {new}; paths in its memory, arguments and "
            f"environment still say {old}.",
            f"If it opens files there by name, let {old} lead to {new}: a link, or a bind mount.",
        )
    longest = [one for one in manifest.outside.sockets if len(os.fsencode(one)) > _SOCKET_PATH]
    for path in longest if facts.moved else ():
        yield blocker(
            "socket-path",
            path,
            f"The path of the job's Unix socket would be {path}, longer than {_SOCKET_PATH} bytes.",
            "Map it to a shorter path.",
        )


def _takes_names(remap: RemapRecord, facts: TargetFacts) -> bool:
    known = facts.writable if remap.linked else facts.makeable
    return known.get(folder_of(remap.path), True)


RULES: Final[tuple[Rule, ...]] = (files, remaps, sockets, servers, locks, relocated)
