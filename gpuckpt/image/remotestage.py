"""The image while it is sent to a store: objects under its own URL, without a manifest.json.

A store knows no rename, so manifest.json comes last: it is put when all objects are there with the
sizes they must have, and until then nobody takes them for an image. Whose they are tells a claim,
an object that is put before all others and removed after them: of two dumps that begin at once, at
least one sees the other's and gives way.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuckptError, ImageExists, NotWritable, WriteFailed
from gpuckpt.image import names, sealed
from gpuckpt.image.asking import PATIENCE, Asking
from gpuckpt.image.crew import Crew
from gpuckpt.image.uploading import Uploads

if TYPE_CHECKING:
    from gpuckpt.image.manifest import Manifest
    from gpuckpt.image.uploading import Store
    from gpuckpt.location import Url

_AT_ONCE: Final = 8


class RemoteStage:
    """An unfinished image in a store; what a Stage is on a disk. Not for two threads."""

    def __init__(self, store: Store, final: Url, owner: str, patience: float = PATIENCE) -> None:
        """Touch nothing; `claim` begins. `owner` is a name that no other dump has."""
        self.final = final
        self.committed = False
        self._store = store
        self._claim = claim_of(owner)
        self._claimed = False
        self._asked = Asking(str(final), patience)
        self._patience = patience
        self._uploads: Uploads | None = None

    @property
    def folder(self) -> Url:
        """The stage itself: it has the name of the image."""
        return self.final

    def claim(self) -> None:
        """Make the place ours; after a failure `discard` removes what there is of it.

        Raises:
            ImageExists: something is there already, or another dump has begun there.
            NotWritable: the store cannot be reached, or does not let us write.
        """
        try:
            there = self._asked(self._store.names)
            if not there:
                self._asked(lambda: self._store.put(self._claim, b""))
                there = self._asked(self._store.names)
                if self._claim not in there:
                    raise WriteFailed(f"{self.final} does not have what was written there")
        except GpuckptError as why:
            raise NotWritable(f"no image can be written: {why.message}", hint=why.hint) from why
        if there.keys() - {self._claim}:
            raise ImageExists(f"{self.final} exists already")
        self._claimed = True

    def shelf(self, most: int = 0, memory: int = 0) -> Uploads:
        """Return the place for the stored CRIU images; see Uploads."""
        self._uploads = Uploads(self._store, str(self.final), most, memory)
        return self._uploads

    def commit(self, what: Manifest) -> Url:
        """See that the store has every object, then put manifest.json.

        Raises:
            WriteFailed: it has not, or does not answer; there is no image, or `discard` has to see
                to it.
        """
        data = sealed.encode(what)
        try:
            self._check(what, self._asked(self._store.names))
            self._put_manifest(data)
        except GpuckptError as why:
            raise WriteFailed(why.message, hint=why.hint) from why
        self.committed = True
        return self.final

    def uncommit(self) -> None:
        """Take the image back: manifest.json goes, and the rest is no image any more.

        Raises:
            WriteFailed: it could not be removed; the image is still there.
        """
        if self.committed:
            try:
                self._take_manifest()
            except GpuckptError as why:
                told = f"the image {self.final} is still there: {why.message}"
                raise WriteFailed(told, hint=why.hint) from why
            self.committed = False

    def discard(self) -> None:
        """Remove all that was sent; a committed image is never removed.

        Raises:
            WriteFailed: something is left there; says what.
        """
        if self.committed:
            return
        if self._uploads is not None:
            self._uploads.stop()
            if not self._uploads.idle(self._patience):
                raise self._left(f"{self.final} does not answer")
        if not self._asked.quiet():
            raise self._left(f"{self.final} does not answer")
        try:
            if self._claimed:
                self._asked(lambda: withdraw(self._store, self._claim))
            else:
                self._asked(lambda: self._store.remove(self._claim))
        except GpuckptError as why:
            raise self._left(why.message, why.hint) from why

    def close(self) -> None:
        """Let go of the place; a whole image needs no claim any more."""
        if self.committed:
            with suppress(GpuckptError):
                self._asked(lambda: self._store.remove(self._claim))

    def _check(self, what: Manifest, there: dict[str, int]) -> None:
        wanted = {
            f"{names.CRIU_DIR}/{names.stored_name(one.name)}": one.stored_size for one in what.files
        }
        for name, size in wanted.items():
            if there.get(name) != size:
                has = f"{there[name]} bytes" if name in there else "nothing"
                raise WriteFailed(f"{self.final}/{name}: the store has {has} of {size} bytes")
        if surplus := there.keys() - wanted.keys() - {self._claim}:
            raise WriteFailed(f"{self.final}/{min(surplus)}: another has put it there")

    def _put_manifest(self, data: bytes) -> None:
        try:
            self._asked(lambda: self._store.put(names.MANIFEST, data))
            if self._asked(self._store.names).get(names.MANIFEST) != len(data):
                raise WriteFailed(f"{self.final} does not have the manifest.json it was sent")
        except GpuckptError:  # it may be there all the same
            with suppress(GpuckptError):
                self._take_manifest()
            raise

    def _take_manifest(self) -> None:
        def take() -> dict[str, int]:
            self._store.remove(names.MANIFEST)
            return self._store.names()

        if names.MANIFEST in self._asked(take):
            raise WriteFailed(f"{self.final}/{names.MANIFEST} could not be removed")

    def _left(self, why: str, hint: str = "") -> WriteFailed:
        """Return what to say of objects that nobody could remove."""
        sent = self._uploads.told if self._uploads is not None else "nothing but a claim"
        return WriteFailed(f"{why}; what was sent there is left ({sent})", hint=hint)


def claim_of(owner: str) -> str:
    """Return the object by which a dump claims its place."""
    return f"{names.UPLOAD_CLAIM}{owner}"


def claims(there: dict[str, int]) -> frozenset[str]:
    """Return the claims among objects, of dumps and of copies."""
    ours = (names.UPLOAD_CLAIM, names.COPY_CLAIM)
    return frozenset(name for name in there if name.startswith(ours))


def withdraw(store: Store, claim: str = "") -> None:
    """Remove an image, manifest.json first and the claim last, and see that it is gone.

    Raises:
        GpuckptError: the store does not answer, or something is still there.
    """
    store.remove(names.MANIFEST)
    _remove_side_by_side(store, [name for name in store.names() if name != claim])
    store.remove_all()
    if left := store.names():
        raise WriteFailed(f"{len(left)} objects could not be removed, {min(left)} is one")


def _remove_side_by_side(store: Store, objects: list[str]) -> None:
    failed: list[Exception] = []

    def remove(name: str) -> None:
        try:
            store.remove(name)
        except Exception as why:  # noqa: BLE001 - raised again below
            failed.append(why)

    crew = Crew("withdraw", _AT_ONCE)
    for name in objects:
        crew.do(partial(remove, name))
    crew.dismiss()
    if failed:
        raise failed[0]
