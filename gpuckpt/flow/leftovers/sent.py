"""What a dump to a store that was cut short has left there: looked at, and removed.

Only what is surely its own: its claim is there and nobody else's, and no manifest.json, unless the
dump itself has written down that the image was not to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuckptError, WriteFailed
from gpuckpt.flow.work.storetool import asked
from gpuckpt.image.asking import PATIENCE
from gpuckpt.image.names import MANIFEST
from gpuckpt.image.remotestage import claim_of, claims, withdraw
from gpuckpt.location import Url, is_url
from gpuckpt.model import warning
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.work.journal import Entry
    from gpuckpt.flow.work.storetool import StoreFolder
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import Finding

# a look must not take long, a removal may
_LOOKING: Final = 15.0


class Sent(Value, frozen=True):
    """What is there. `unknown` says why that could not be seen; `ours` may be removed."""

    objects: int = 0
    bytes: int = 0
    whole: bool = False
    ours: bool = False
    unknown: str = ""


def in_store(entry: Entry) -> bool:
    """Whether the image of this operation was to be made in a store."""
    return is_url(entry.stage)


def look(tools: Toolbox, entry: Entry) -> Sent:
    """Return what is left of a dump in its store; nothing is touched."""
    try:
        there = asked(tools.stores, Url(entry.stage), lambda one: one.names(), _LOOKING)
    except GpuckptError as why:
        return Sent(unknown=why.message)
    return _judged(entry, there)


def _judged(entry: Entry, there: dict[str, int]) -> Sent:
    mine, others = claim_of(entry.id), claims(there) - {claim_of(entry.id)}
    given_up = entry.step == "abandoned"
    whole = MANIFEST in there and not (given_up and mine in there)
    ours = mine in there and not others and not whole
    return Sent(len(there), sum(there.values()), whole, ours)


def may_be_whole(tools: Toolbox, entry: Entry) -> bool:
    """Whether the image is there, or nobody can say that it is not."""
    seen = look(tools, entry)
    return seen.whole or bool(seen.unknown)


def left(tools: Toolbox, entry: Entry) -> Iterator[Finding]:
    """Tell what is there of an image that was never finished."""
    seen = look(tools, entry)
    reason = f"The image was never finished: {seen.objects} objects, {seen.bytes} bytes."
    if seen.unknown:
        reason = f"What a dump has left there cannot be seen: {seen.unknown}."
    if seen.ours or seen.unknown:
        yield warning("left-stage", entry.stage, reason, "`gpuckpt repair` removes it.")


def take_away(tools: Toolbox, entry: Entry) -> None:
    """Remove what is left of a dump in its store, if that is its own.

    Raises:
        WriteFailed: the store does not answer, or refuses.
    """
    mine = claim_of(entry.id)

    def remove(folder: StoreFolder) -> None:
        if _judged(entry, folder.names()).ours:
            withdraw(folder, mine)
        else:
            folder.remove(mine)

    try:
        asked(tools.stores, Url(entry.stage), remove, PATIENCE)
    except GpuckptError as why:
        raise WriteFailed(why.message, hint=why.hint) from why
