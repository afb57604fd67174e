"""show: what an image holds, where it comes from and what a restore of it needs.

Looking is allowed where restoring is not: an image of another user, one with needs this gpuckpt
does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuckpt.account import Account
from gpuckpt.errors import UsageError
from gpuckpt.flow.work.history import History, Record, record_of
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image import wire
from gpuckpt.image.manifest import unknown_needs
from gpuckpt.timing import Receipt
from gpuckpt.value import Value

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.manifest import Manifest
    from gpuckpt.location import Location

_LARGEST_RECEIPT: Final = 8 << 20
_RECEIPTS: Final = "Name an image, or a file of receipts/ in the state directory or of --json."


class ShowResult(Value, frozen=True):
    """An image's manifest; `unknown_needs` are why this gpuckpt could not restore it.

    `records` tell how its dump and its restores went, as far as this host knows, oldest first.
    """

    manifest: Manifest
    path: Location
    unknown_needs: tuple[str, ...]
    records: tuple[Record, ...] = ()


class _Printed(msgspec.Struct, frozen=True):
    """What of the result of a command belongs to its receipt."""

    receipt: Receipt
    image_id: str = ""
    account: Account | None = None


def show(path: Location, state_dir: Path | None = None) -> ShowResult:
    """Read the manifest of an image, and what the state directory knows of it.

    Raises:
        ImageError: there is no image, or its manifest cannot be read.
        NotPrivileged: this user may not read it.
    """
    with open_image(path, trust=False) as image:
        manifest = image.manifest
        known = History(state_dir).of_image(manifest.image_id) if state_dir is not None else ()
        if not any(one.operation == "dump" for one in known):
            known = (record_of(manifest, manifest.receipt), *known)
        return ShowResult(manifest, image.path, unknown_needs(manifest), known)


def receipt(path: Path) -> Record:
    """Read a receipt: one of the state directory, or what a command printed with --json.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_RECEIPT)
    except OSError as why:
        raise UsageError(f"{path} cannot be read: {why.strerror}") from why
    try:
        plain = msgspec.json.decode(raw)
        if flaw := next(wire.flaws(plain), None):
            raise UsageError(f"{path} holds no receipt that can be trusted: {flaw}")
        return _record(wire.unescape(plain))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as why:
        raise UsageError(f"{path} holds no receipt: {why}", hint=_RECEIPTS) from why


def _record(plain: object) -> Record:
    """Return what is in a record, in the envelope of a command, or in a receipt alone."""
    if isinstance(plain, dict) and isinstance(plain.get("result"), dict):
        plain = plain["result"]
    if isinstance(plain, dict) and "receipt" in plain and "operation" in plain:
        return msgspec.convert(plain, Record)
    if isinstance(plain, dict) and "receipt" in plain:
        found = msgspec.convert(plain, _Printed)
    else:
        found = _Printed(receipt=msgspec.convert(plain, Receipt))
    receipt = found.receipt
    return Record(
        operation=receipt.operation,
        started=receipt.started,
        receipt=receipt,
        image_id=found.image_id,
        account=found.account,
    )
