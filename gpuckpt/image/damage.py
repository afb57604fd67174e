"""One damaged place of an image, for `verify` to list and for a restore to refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.errors import ImageDamaged
from gpuckpt.image import names
from gpuckpt.model import blocker
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.location import Location
    from gpuckpt.model import Finding

_REMEDY = "Restore from another copy of the image."


class Damage(Value, frozen=True):
    """What is wrong with one file of an image, or with one frame of it.

    `file` is the path inside the image, `frame` counts from 0, `offset` is the frame's first
    byte in the stored file; both are None where the whole file is meant.
    """

    file: str
    reason: str
    frame: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        """Return one line for people; names that came from the disk are made harmless."""
        where = "" if self.frame is None else f", frame {self.frame} at byte {self.offset}"
        return f"{ascii(self.file)[1:-1]}{where}: {self.reason}"

    def finding(self) -> Finding:
        """Return it as a finding that stops a restore."""
        return blocker("image-damaged", self.file, str(self), _REMEDY)


class Damaged(Exception):
    """Stops the use of one file of an image; `damage` says why. Never leaves the room."""

    def __init__(self, damage: Damage) -> None:
        """Keep what was found."""
        super().__init__(str(damage))
        self.damage = damage


def stored_damage(entry: FileEntry, reason: str) -> Damage:
    """Return the damage of a whole stored file."""
    return Damage(f"{names.CRIU_DIR}/{names.stored_name(entry.name)}", reason)


def wrong_size(entry: FileEntry, size: int) -> Damage:
    """Return the damage of a stored file that has another size than the manifest says."""
    off = size - entry.stored_size
    change = f"{off} bytes too long" if off > 0 else f"cut short by {-off} bytes"
    return stored_damage(entry, f"it is {change}")


def refusal(path: Location, damages: Iterable[Damage]) -> ImageDamaged:
    """Return the error for an image with these damages; the message names the first."""
    found = tuple(damages)
    more = f" ({len(found)} damages in all)" if len(found) > 1 else ""
    return ImageDamaged(
        f"the image {path} is damaged: {found[0]}{more}",
        findings=[damage.finding() for damage in found],
    )
