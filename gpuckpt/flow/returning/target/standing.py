"""How the files an image carries stand on this host: looked at, not judged."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from blake3 import blake3
from msgspec.structs import replace

from gpuckpt.flow.returning.ledger import Ledger
from gpuckpt.model import Carriage
from gpuckpt.tools.pidspace import own_memory
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.putting import Identity, User

    Matches = Callable[[str, CarriedFile], bool]


# of a name, in bytes; as long as it is not whole, a file has another ending behind it (.new)
_LONGEST: Final = 255 - len(".new")
_SHORT: Final = 8


class State(StrEnum):
    """How a carried file is here.

    MISSING: no name of it is there. THERE: it is as it was, or need not be. STALE: it was the job's
    own memory and has changed since. GROWN: what the job writes, with more bytes after those of the
    image. CHANGED: the job's own work, and another in any other way, or grown though the job only
    reads it: that is a user's edit. TAKEN: it is somebody else's.
    """

    MISSING = "missing"
    THERE = "there"
    STALE = "stale"
    GROWN = "grown"
    CHANGED = "changed"
    TAKEN = "taken"


class Standing(Value, frozen=True):
    """One carried file here: `path` is its first name that is there, of the file `inode`.

    `size` and `mtime_ns` are today's, `names` those that are there. `pid` is a process that has it,
    `writes`: and can write to it. `why` says what is different. `tag` makes names beside it that
    nothing has.
    """

    file: CarriedFile
    state: State
    path: str = ""
    device: int = 0
    inode: int = 0
    pid: int | None = None
    why: str = ""
    size: int = 0
    mtime_ns: int = 0
    names: tuple[str, ...] = ()
    writes: bool = False
    tag: str = ""

    def later(self, path: str) -> str:
        """Return where the bytes go that a file has got since."""
        return _beside(path, f".after-{self.tag}")

    def replaced(self, path: str) -> str:
        """Return where a file goes that the image's is put in place of."""
        return _beside(path, f".replaced-{self.tag}")


def _beside(path: str, ending: str) -> str:
    """Put an ending to a name; one that leaves no room is cut, and told from others by digest."""
    folder, _, name = path.rpartition("/")
    raw, room = os.fsencode(name), _LONGEST - len(ending)
    if len(raw) > room:
        short, digest = raw[: room - _SHORT - 1], blake3(raw).hexdigest()[:_SHORT]
        name = f"{short.decode(errors='ignore')}~{digest}"
    return f"{folder}/{name}{ending}"


def standings(
    tools: Toolbox,
    manifest: Manifest,
    boot_id: str,
    *,
    apart: bool = False,
    check: Callable[[], None] = lambda: None,
) -> tuple[Standing, ...]:
    """Look at each carried file; the bytes of those that have to be the same are read.

    `apart`: the job gets memory of its own, in which nothing is yet. `check` is called meanwhile,
    and may raise.
    """
    own = Ledger(tools.state_dir).files(boot_id) if manifest.carried else set()
    if manifest.host.boot_id == boot_id:
        own |= {(one.device, one.inode) for one in manifest.carried}

    written = {
        one.path for one in manifest.outside.files if one.flags & os.O_ACCMODE != os.O_RDONLY
    }

    def matches(path: str, file: CarriedFile) -> bool:
        return tools.carried.matches(path, file, check)

    found = [
        Standing(one, State.MISSING)
        if apart and own_memory(one.path)
        else _tagged(tools, _standing(tools, one, own, matches, written), manifest.image_id)
        for one in manifest.carried
    ]
    here = {(one.device, one.inode) for one in found} - {(0, 0)}
    users = tools.carried.users(here) if here else {}
    return tuple(_used(one, users.get((one.device, one.inode))) for one in found)


def _used(one: Standing, user: User | None) -> Standing:
    """Say who has the file; of memory that has changed he must not be robbed."""
    if user is None or one.state in {State.MISSING, State.TAKEN}:
        return one
    if one.state is State.STALE:
        return _taken(one, f"it has changed, and process {user.pid} uses it", user.pid)
    return replace(one, pid=user.pid, writes=user.writes)


def _tagged(tools: Toolbox, one: Standing, image_id: str) -> Standing:
    """Find names beside the file that nothing has; a plan that is made again has the same."""
    if one.state not in {State.GROWN, State.CHANGED}:
        return one
    short = image_id.replace("-", "")[:8]
    number = 1
    while True:
        one = replace(one, tag=short if number == 1 else f"{short}-{number}")
        beside = [name for path in one.names for name in (one.later(path), one.replaced(path))]
        if not any(tools.carried.identity(name) for name in beside):
            return one
        number += 1


def _standing(
    tools: Toolbox,
    file: CarriedFile,
    own: Collection[tuple[int, int]],
    matches: Matches,
    written: Collection[str],
) -> Standing:
    seen = {path: now for path in file.names if (now := tools.carried.identity(path)) is not None}
    if not seen:
        return Standing(file, State.MISSING)
    path, now = next(iter(seen.items()))
    here = Standing(
        file,
        State.THERE,
        path,
        now.device,
        now.inode,
        size=now.size,
        mtime_ns=now.mtime_ns,
        names=tuple(seen),
    )
    if odd := [name for name, what in seen.items() if not what.regular]:
        return _taken(here, f"{odd[0]} is no regular file")
    other = [name for name, what in seen.items() if what.inode != now.inode]
    change = f"{other[0]} is not the same file any more" if other else ""
    if file.why is not Carriage.NEEDED:
        grows = file.why is Carriage.INCLUDED or any(name in written for name in file.names)
        return _work(matches, here, now, change, grows=grows)
    if change:
        return _taken(here, change)
    return _memory(matches, here, now, mine=(now.device, now.inode) in own)


def _memory(matches: Matches, here: Standing, now: Identity, *, mine: bool) -> Standing:
    """Look at what the job cannot do without; `mine`: it was the job's own."""
    if not here.file.exact or (mine and not here.file.memory):
        return here
    change = _change(matches, here.path, now, here.file)
    if change and mine:
        return replace(here, state=State.STALE)
    return _taken(here, change) if change else here


def _work(matches: Matches, here: Standing, now: Identity, change: str, *, grows: bool) -> Standing:
    """Look at what the job has written, or the user wants to be there: that belongs to it."""
    file = here.file
    change = change or _owned(now, file)
    if not change and grows and now.size > file.size and matches(here.path, file):
        return replace(here, state=State.GROWN)
    change = change or _change(matches, here.path, now, file)
    return replace(here, state=State.CHANGED, why=change) if change else here


def _change(matches: Matches, path: str, now: Identity, file: CarriedFile) -> str:
    """Say what is different, "" if nothing is."""
    if change := _owned(now, file):
        return change
    if now.size != file.size:
        return f"it has {now.size} bytes instead of {file.size}"
    return "" if matches(path, file) else "its bytes are others"


def _owned(now: Identity, file: CarriedFile) -> str:
    if (now.uid, now.gid) != (file.uid, file.gid):
        return f"it belongs to user {now.uid} and group {now.gid}"
    return "" if now.mode == file.mode else f"its mode is {now.mode:04o}"


def _taken(here: Standing, why: str, pid: int | None = None) -> Standing:
    return replace(here, state=State.TAKEN, why=why, pid=pid)
