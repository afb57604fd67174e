"""copy: an image from where it is to where it shall be too, on this host or in a store.

What has arrived is read back from there and compared with the image's digests, all of it, before
it becomes an image: a store's own checksums differ from kind to kind, this proof does not. A copy
that was cut short is gone on with by the same command.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.errors import GpuckptError, ImageExists, UsageError
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image.check import check_files
from gpuckpt.image.copying import Copier
from gpuckpt.image.damage import refusal
from gpuckpt.image.disk import image_around
from gpuckpt.image.distant import DistantOrigin, key_of
from gpuckpt.image.landing import StoreLanding
from gpuckpt.image.landingfolder import FolderLanding
from gpuckpt.image.names import MANIFEST
from gpuckpt.image.store import Image
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuckpt.events import Reporter
    from gpuckpt.flow.work.interrupts import Interrupts
    from gpuckpt.flow.work.storetool import StoresTool
    from gpuckpt.image.damage import Damage
    from gpuckpt.image.landing import Landing
    from gpuckpt.image.manifest import FileEntry, Manifest
    from gpuckpt.location import Location

_GOES_ON = "what has arrived is kept: the same copy goes on with it, with --discard it is removed"


class CopyRequest(Value, frozen=True):
    """What to copy and where to: `inside` a folder of that name, as a slash at its end says.

    `discard`: copy nothing, but remove what an earlier copy to there has left.
    """

    image: Location
    place: Location
    inside: bool = False
    discard: bool = False


class CopyResult(Value, frozen=True):
    """What came of it: so many bytes were `sent`, so many proved to be there.

    `already`: the image was there; or, with `discard`, what it left is gone if there was any.
    """

    image: Location
    place: Location
    manifest: Manifest
    files: int = 0
    bytes: int = 0
    sent: int = 0
    seconds: float = 0.0
    sending: float = 0.0
    already: bool = False
    discarded: bool = False


def copy(
    request: CopyRequest, stores: StoresTool, reporter: Reporter, interrupts: Interrupts
) -> CopyResult:
    """Copy an image; or remove what an earlier copy of it has left.

    Raises:
        ImageExists: something else is at the place.
        ImageError: there is no image, it is damaged, or a store failed.
        NotWritable, NoSpace: it cannot be written there.
        Interrupted: a signal asked to stop; what has arrived is kept.
    """
    # trusted as for a restore: the copy is this user's own, and will be
    with open_image(request.image, stores, check=interrupts.check) as image:
        place = final_place(request)
        with closing(_landing(place, stores, image.manifest.image_id)) as landing:
            if request.discard:
                gone = landing.discard()
                return CopyResult(request.image, place, image.manifest, discarded=gone)
            if not _is_there(image, place, stores):
                landing.begin()
                return _Copy(request.image, image, landing, reporter, interrupts).run()
        return CopyResult(request.image, place, image.manifest, already=True)


def final_place(request: CopyRequest) -> Location:
    """Return where the image is going to be: as `cp -r` has it, into a folder that is there.

    A store has no folders, so only a slash at the end tells.

    Raises:
        UsageError: the image has no name that it could have there, or the place is in an image.
    """
    place = request.place
    inside = request.inside
    if isinstance(place, Path):
        # Path.is_dir would raise where a folder is closed to us
        folder = os.path.isdir(place)  # noqa: PTH112
        inside = inside or (folder and not os.path.exists(place / MANIFEST))  # noqa: PTH110
    if inside and not request.image.name:
        raise UsageError(f"{request.image} has no name", hint="Say what the copy is to be called.")
    final = place / request.image.name if inside else place
    if isinstance(final, Path) and (around := image_around(final)):
        raise UsageError(
            f"{final} is in the image {around}, and would damage it",
            hint="Name a place beside it.",
        )
    return final


def _landing(place: Location, stores: StoresTool, image_id: str) -> Landing:
    if isinstance(place, Path):
        return FolderLanding(place, image_id)
    return StoreLanding(place, stores.folder(place), image_id)


def _is_there(image: Image, place: Location, stores: StoresTool) -> bool:
    """Whether this very image is there already, with all its files.

    Raises:
        ImageExists: another image is there.
        ImageDamaged: it is the same, and lacks files.
    """
    try:
        there = open_image(place, stores)
    except GpuckptError:  # no image: whether it can become one is seen by who begins
        return False
    with there:
        if there.seal != image.seal:
            raise ImageExists(f"{place} is another image, {there.manifest.image_id}")
        there.check_sizes()
        return True


class _Copy:
    """One copy to a place that was taken."""

    def __init__(
        self,
        name: Location,
        image: Image,
        landing: Landing,
        reporter: Reporter,
        interrupts: Interrupts,
    ) -> None:
        self._name = name
        self._image = image
        self._landing = landing
        self._reporter = reporter
        self._interrupts = interrupts
        self._sent = 0

    def run(self) -> CopyResult:
        begun = time.monotonic()
        files = self._image.manifest.files
        try:
            self._send(None)
            sending = time.monotonic() - begun
            if damage := self._wrong():
                self._again(damage)
            self._interrupts.check()
            self._landing.finish(self._image.document)
        except GpuckptError:
            self._reporter.note(_GOES_ON)
            raise
        return CopyResult(
            image=self._name,
            place=self._landing.place,
            manifest=self._image.manifest,
            files=len(files),
            bytes=self._image.manifest.totals.stored,
            sent=self._sent,
            seconds=time.monotonic() - begun,
            sending=sending,
        )

    def _send(self, only: Collection[FileEntry] | None) -> None:
        """Send what has not arrived, or these files anew."""
        total = self._image.manifest.totals.stored
        with self._reporter.step("copy", f"to {self._landing.place}", total) as step:
            copier = Copier(self._image, self._landing, step.advance, self._interrupts.check)
            for entry in only or ():
                self._landing.remove(key_of(entry))
            missing = copier.missing()
            step.advance(total - sum(one.stored_size for one in missing))
            try:
                copier.send(missing)
            finally:
                self._sent += copier.sent

    def _wrong(self, only: Collection[FileEntry] | None = None) -> tuple[Damage, ...]:
        """Read back what has arrived; return what is not as the digests say."""
        place, manifest = self._landing.place, self._image.manifest
        total = sum(one.stored_size for one in (manifest.files if only is None else only))
        with self._reporter.step("read back", f"from {place}", total) as step:

            def on_bytes(count: int) -> None:
                step.advance(count)
                self._interrupts.check()

            check = self._interrupts.check
            origin = DistantOrigin(self._landing, place, owned=False, check=check)
            with Image.arrived(origin, place, manifest) as arrived:
                return check_files(arrived, on_bytes, only=only)

    def _again(self, damage: tuple[Damage, ...]) -> None:
        """Send once more what has not arrived as it is in the image."""
        names = {one.file for one in damage}
        files = [one for one in self._image.manifest.files if key_of(one) in names]
        for name in names - {key_of(one) for one in files}:
            self._landing.remove(name)
        self._reporter.note(f"{damage[0]}: sent once more")
        self._send(files)
        if self._wrong(files):
            if own := check_files(self._image, only=files):
                raise refusal(self._image.path, own)
            raise refusal(self._landing.place, self._wrong(files))
