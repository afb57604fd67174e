"""How the files an image carries stand on this host: there, missing, stale or somebody else's."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuckpt.flow.returning.ledger import Ledger
from gpuckpt.tools.pidspace import own_memory
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.putting import Identity


class State(StrEnum):
    """What a restore does about a carried file.

    MISSING: it is made. THERE: it is taken as it is. STALE: it was the job's own, has changed
    since, and nobody has it: it is replaced. TAKEN: it is left alone, and the restore is refused.
    """

    MISSING = "missing"
    THERE = "there"
    STALE = "stale"
    TAKEN = "taken"


class Standing(Value, frozen=True):
    """One carried file here: `path` is its first name that is there, of the file `inode`.

    `pid` is a process that has it, `why` says why it is TAKEN.
    """

    file: CarriedFile
    state: State
    path: str = ""
    device: int = 0
    inode: int = 0
    pid: int | None = None
    why: str = ""


def standings(
    tools: Toolbox, manifest: Manifest, boot_id: str, *, apart: bool = False
) -> tuple[Standing, ...]:
    """Look at each carried file; the bytes of those that have to be the same are read.

    `apart`: the job gets memory of its own, in which nothing is yet.
    """
    own = Ledger(tools.state_dir).files(boot_id) if manifest.carried else set()
    if manifest.host.boot_id == boot_id:
        own |= {(one.device, one.inode) for one in manifest.carried}
    found = [
        Standing(one, State.MISSING)
        if apart and own_memory(one.path)
        else _standing(tools, one, own)
        for one in manifest.carried
    ]
    here = {(one.device, one.inode) for one in found if one.state in {State.STALE, State.THERE}}
    users = tools.carried.users(here) if here else {}
    return tuple(_used(one, users.get((one.device, one.inode))) for one in found)


def _used(one: Standing, pid: int | None) -> Standing:
    """Say who has the file; of what has changed he must not be robbed."""
    if pid is None or one.state in {State.MISSING, State.TAKEN}:
        return one
    if one.state is State.STALE:
        return _taken(one, f"it has changed, and process {pid} uses it", pid)
    return replace(one, pid=pid)


def _standing(tools: Toolbox, file: CarriedFile, own: Collection[tuple[int, int]]) -> Standing:
    seen = {path: now for path in file.names if (now := tools.carried.identity(path)) is not None}
    if not seen:
        return Standing(file, State.MISSING)
    path, now = next(iter(seen.items()))
    here = Standing(file, State.THERE, path, now.device, now.inode)
    other = [name for name, what in seen.items() if what.inode != now.inode]
    if other or not now.regular:
        why = f"{other[0]} is not the same file any more" if other else "it is no regular file"
        return _taken(here, why)
    mine = (now.device, now.inode) in own
    if not file.exact or (mine and not file.memory):
        return here
    change = _change(tools, path, now, file)
    if change and mine:
        return Standing(file, State.STALE, path, now.device, now.inode)
    return _taken(here, change) if change else here


def _change(tools: Toolbox, path: str, now: Identity, file: CarriedFile) -> str:
    """Say what is different, "" if nothing is."""
    if (now.uid, now.gid) != (file.uid, file.gid):
        return f"it belongs to user {now.uid} and group {now.gid}"
    if now.mode != file.mode:
        return f"its mode is {now.mode:04o}"
    if now.size != file.size:
        return f"it has {now.size} bytes instead of {file.size}"
    return "" if tools.carried.matches(path, file) else "its bytes are others"


def _taken(here: Standing, why: str, pid: int | None = None) -> Standing:
    return Standing(here.file, State.TAKEN, here.path, here.device, here.inode, pid, why)
