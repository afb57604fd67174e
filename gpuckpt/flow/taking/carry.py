"""Taking files along: what lies in memory or has no name would be missing where the job returns.

Done while the tree is frozen and CRIU has handed all its images over. The bytes of all files follow
each other in one stored file beside CRIU's images.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import DumpFailed
from gpuckpt.image.names import CARRIED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.pack import Packer
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.openfiles import Remap
    from gpuckpt.tools.pidspace import Space


def find(
    tools: Toolbox, pids: tuple[int, ...], remaps: Iterable[Remap], space: Space | None = None
) -> tuple[CarriedFile, ...]:
    """Return the files to be taken along; CRIU's own images say which names it has made.

    Of a job in a pid namespace they have the names by which they are found from here; `as_known`
    gives them back those that the job knows.

    Raises:
        DumpFailed: one cannot be read.
    """
    reach = space.reach if space is not None else str
    links = {reach(one.name) for one in remaps if one.linked}
    try:
        held = {reach(path): exact for path, exact in tools.carried.held(pids).items()}
        return tools.carried.examine(held, links, pids)
    except OSError as why:
        raise _unreadable(why) from why


def named(files: tuple[CarriedFile, ...]) -> str:
    """Name the first, count the others."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].path}{more}"


def as_known(files: Iterable[CarriedFile], space: Space | None) -> tuple[CarriedFile, ...]:
    """Return the files by the names that the job knows."""
    if space is None:
        return tuple(files)
    return tuple(
        replace(
            one, names=tuple(space.named(name) for name in one.names), link=space.named(one.link)
        )
        for one in files
    )


def store(
    tools: Toolbox, files: tuple[CarriedFile, ...], packer: Packer
) -> tuple[CarriedFile, ...]:
    """Store the bytes of all files as one, and return them with their digests.

    Raises:
        DumpFailed: one cannot be read.
        WriteFailed: the image cannot be written, or its writing was stopped.
    """
    read, write = os.pipe()
    done: list[CarriedFile] = []
    failed: list[Exception] = []

    def copy() -> None:
        try:
            for one in files:
                done.append(replace(one, digest=tools.carried.copy(one, write)))  # noqa: PERF401
        except Exception as why:  # noqa: BLE001 - raised again below
            failed.append(why)
        finally:
            os.close(write)

    copier = threading.Thread(target=copy, name="carry")
    copier.start()
    try:
        packer.store(CARRIED, read)
    finally:
        os.close(read)  # then a copier that nobody listens to ends
        copier.join()
    if failed:
        why = failed[0]
        raise _unreadable(why) if isinstance(why, OSError) else why
    return tuple(done)


def unlink(tools: Toolbox, files: Iterable[CarriedFile]) -> None:
    """Remove the names CRIU has made: the image has the files, and the next dump needs the names.

    CRIU 4.2.1 takes them for removed if the job goes on.

    Raises:
        DumpFailed: one cannot be removed.
    """
    for one in files:
        now = tools.carried.identity(one.link) if one.link else None
        if now is not None and (now.device, now.inode) == (one.device, one.inode):
            try:
                tools.files.remove(one.link)
            except OSError as why:
                raise DumpFailed(f"{one.link} cannot be removed: {why.strerror}") from why


def _unreadable(why: OSError) -> DumpFailed:
    return DumpFailed(f"{why.filename or 'a file in memory'} cannot be read: {why.strerror}")
