"""An image that is there: its manifest, and its files found by CRIU's names for them.

Where it lies is the matter of its origin: a folder of this host (local) or of a store (distant).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

from gpuckpt.image import sealed
from gpuckpt.image.damage import Damaged, refusal, stored_damage
from gpuckpt.image.frames import FrameTable, TableDamaged, decode_table, table_size
from gpuckpt.image.local import LocalOrigin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

    from gpuckpt.image.manifest import FileEntry, Manifest
    from gpuckpt.image.origin import Origin, Source
    from gpuckpt.location import Location


class Image:
    """An open image; `entries` finds its files by CRIU's names. Close it, or use `with`.

    Reading from several threads is fine. `document` are the bytes of its manifest, `seal` the
    digest that they end with.
    """

    def __init__(self, path: Location, origin: Origin) -> None:
        """Know where it is; use `open` or `on`."""
        self.path = path
        self.manifest: Manifest
        self.document = b""
        self.seal = ""
        self.entries: dict[str, FileEntry] = {}
        self._origin = origin

    @classmethod
    def open(cls, path: Path, trust: bool = True) -> Image:
        """Open the image at `path`; with `trust` only if nobody else can have written it.

        Raises:
            NotAnImage: there is nothing, or something else, or an unfinished image.
            NotPrivileged: this user may not read it.
            ImageUntrusted: it is another user's, or others can write it.
            ImageDamaged: its manifest or its folder cannot be used.
            ImageUnsupported: it has a newer format.
        """
        return cls.on(LocalOrigin(path, trust=trust), path)

    @classmethod
    def on(cls, origin: Origin, path: Location) -> Image:
        """Open the image at an origin, which is closed with it; raises as `open` does."""
        image = cls(path, origin)
        try:
            image.document = origin.manifest()
            image.manifest = sealed.decode(image.document)
            image.seal = sealed.unbroken(image.document)
            origin.expect(image.manifest.files)
        except BaseException:
            image.close()
            raise
        image.entries = {entry.name: entry for entry in image.manifest.files}
        return image

    @classmethod
    def arrived(cls, origin: Origin, path: Location, manifest: Manifest) -> Image:
        """Return what there is of an image that has no manifest yet, but will have this one."""
        image = cls(path, origin)
        image.manifest = manifest
        image.entries = {entry.name: entry for entry in manifest.files}
        origin.expect(manifest.files)
        return image

    def close(self) -> None:
        """Let go of where it lies; closing twice is fine."""
        self._origin.close()

    def __enter__(self) -> Self:
        """Return the image itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def open_stored(self, entry: FileEntry) -> Source:
        """Return the stored file of `entry`, open for reading, its size as recorded.

        Raises:
            Damaged: it is missing, no regular file, or has another size.
            ImageUntrusted: as in `open`.
        """
        return self._origin.open(entry)

    def table(self, entry: FileEntry, source: Source) -> FrameTable:
        """Return the frame table of the open stored file, checked against its digest.

        Raises:
            Damaged: it is not the table that was written.
        """
        try:
            data = source.tail(table_size(entry.frames, entry.table_version))
        except OSError as why:
            reason = f"its frame table cannot be read ({why.strerror})"
            raise Damaged(stored_damage(entry, reason)) from why
        if blake3(data).hexdigest() != entry.table_blake3:
            raise Damaged(stored_damage(entry, "its frame table is not the one written"))
        try:
            return decode_table(
                data,
                version=entry.table_version,
                frames=entry.frames,
                raw_size=entry.raw_size,
                stored_size=entry.stored_size,
            )
        except TableDamaged as why:
            raise Damaged(stored_damage(entry, str(why))) from why

    def strays(self) -> Iterator[str]:
        """Yield what lies in the image and does not belong to it."""
        return self._origin.strays()

    def check_sizes(self) -> None:
        """Look at every file without reading it: there, regular, right size, right table.

        Raises:
            ImageDamaged: with one finding for every file that is not as recorded.
            ImageUntrusted: as in `open`.
        """
        found = []
        for entry in self.manifest.files:
            try:
                source = self.open_stored(entry)
                try:
                    self.table(entry, source)
                finally:
                    source.close()
            except Damaged as why:
                found.append(why.damage)
        if found:
            raise refusal(self.path, found)
