"""Taking files along: the job's own work, and what would be missing where the job returns.

Done while the tree is frozen and CRIU has handed all its images over. The bytes of all files follow
each other in one stored file beside CRIU's images.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.errors import DumpFailed
from gpuckpt.flow.sight.along import along
from gpuckpt.image.names import CARRIED
from gpuckpt.model import Carriage
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.flow.request import FileChoice
    from gpuckpt.flow.sight.along import Along
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.pack import Packer
    from gpuckpt.model import CarriedFile, Tree
    from gpuckpt.tools.openfiles import Remap
    from gpuckpt.tools.pidspace import Space


class Found(Value, frozen=True):
    """What goes along of a frozen tree, as it is, and all that `along` says of its files."""

    files: tuple[CarriedFile, ...]
    along: Along


def find(
    tools: Toolbox,
    tree: Tree,
    remaps: Iterable[Remap],
    choice: FileChoice,
    *,
    space: Space | None = None,
    leave: Iterable[str] = (),
) -> Found:
    """Return the files to be taken along; CRIU's own images say which names it has made.

    Of a job in a pid namespace they have the names by which they are found from here; `as_known`
    gives them back those that the job knows. Nothing is taken of the paths in `leave`.

    Raises:
        DumpFailed: one cannot be read, or what was to be included is not there any more.
    """
    reach = space.reach if space is not None else str
    links = {reach(one.name) for one in remaps if one.linked}
    try:
        used = tools.carried.used(tree.pids, reach)
        found = along(tools, used, tree, choice, space=space, leave=leave)
        if found.missed:
            lost = found.missed[0]
            raise DumpFailed(f"{lost.path} cannot be included any more: {lost.why}")
        needed, work = _sorted(found)
        return Found(tools.carried.examine(needed, links, tree.pids, work), found)
    except OSError as why:
        raise _unreadable(why) from why


def _sorted(found: Along) -> tuple[dict[str, bool], dict[str, Carriage]]:
    """Return the names of what the job's memory needs and how exactly, and those of the rest."""
    needed: dict[str, bool] = {}
    work: dict[str, Carriage] = {}
    for one in found.taken:
        if one.why is Carriage.NEEDED:
            needed |= dict.fromkeys(one.file.names, one.sharp)
        else:
            work |= dict.fromkeys(one.file.names, one.why)
    return needed, work


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
