"""What an operation leaves on a host for a while, as the journal has it: names made, and moved."""

from __future__ import annotations

import msgspec


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """A file without a name, for which CRIU makes one: link_remap.N in `folder`.

    `before` are the names of that kind which were there already: they are not ours.
    """

    folder: str
    device: int
    inode: int
    before: tuple[str, ...] = ()


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore has made; `aside`: an older file's name, and the one it was moved to.

    `kept`: that one stays if the job does. `spare` is a name that only this restore has.
    """

    device: int = 0
    inode: int = 0
    names: tuple[str, ...] = ()
    link: str = ""
    aside: tuple[tuple[str, str], ...] = ()
    folder: bool = False
    kept: bool = False
    spare: str = ""
