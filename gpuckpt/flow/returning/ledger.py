"""Which images were restored on this host, and as which processes: one small file an image.

An image is never written to, so what became of it stands in the state directory. Losing it costs
a warning, nothing more: it is not synced, and what cannot be read counts as not there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from gpuckpt.image import wire
from gpuckpt.model import ProcessRef

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.store import Image

KEPT = 200


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The last restore of one image on this host; the start times are those of the new tree.

    `copies` are processes of earlier restores that ran still: in pid namespaces there may be many.
    `files` are device and inode of what the image carries, as they are since. `cold`: the job was
    started from its beginning instead.
    """

    image_id: str
    image: str
    at: str
    boot_id: str
    processes: tuple[ProcessRef, ...]
    files: tuple[tuple[int, int], ...] = ()
    copies: tuple[ProcessRef, ...] = ()
    cold: bool = False

    @property
    def known(self) -> tuple[ProcessRef, ...]:
        """All processes that may be this job."""
        return self.processes + self.copies


def place_id(place: str) -> str:
    """Return what stands for the id of an image that cannot be read: where it is."""
    return f"place-{blake3(os.fsencode(_real(place))).hexdigest()[:32]}"


def _real(place: str) -> str:
    """Return one name for all that lead to a folder by symbolic links; a URL has no other."""
    return os.path.realpath(place) if place.startswith("/") else place


class Ledger:
    """The ledger of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        """Know where it is; nothing is made before something is written."""
        self._folder = state_dir / "restored"

    def last(self, image_id: str) -> Restored | None:
        """Return the last restore of an image here, None if there was none."""
        try:
            raw = self._path(image_id).read_bytes()
            return wire.from_json(raw, Restored)
        except (OSError, msgspec.MsgspecError):
            return None

    def files(self, boot_id: str) -> set[tuple[int, int]]:
        """Return device and inode of all files that restores since this boot gave to jobs."""
        found: set[tuple[int, int]] = set()
        with suppress(OSError):
            for path in self._folder.glob("*.json"):
                with suppress(OSError, msgspec.MsgspecError):
                    one = msgspec.json.decode(path.read_bytes(), type=Restored)
                    found |= set(one.files) if one.boot_id == boot_id else set()
        return found

    def at(self, image: str) -> tuple[Restored, ...]:
        """Return what came of the images at a place, which may have become unreadable."""
        real = _real(image)
        return tuple(one for one in self._all() if image == one.image or real == _real(one.image))

    def of(self, job: ProcessRef, boot_id: str) -> tuple[Restored, ...]:
        """Return what became this process."""
        return tuple(one for one in self._all() if one.boot_id == boot_id and job in one.known)

    def _all(self) -> list[Restored]:
        found = []
        with suppress(OSError):
            for path in sorted(self._folder.glob("*.json")):
                with suppress(OSError, msgspec.MsgspecError):
                    found.append(wire.from_json(path.read_bytes(), Restored))
        return found

    def write(self, restored: Restored) -> None:
        """Write one down in place of an older one; OSError if that cannot be done."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(restored.image_id)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(wire.to_json(restored))
        fresh.rename(path)

    def add(self, restored: Restored) -> None:
        """Write one down, and keep the newest; a full disk is no reason to fail a restore."""
        with suppress(OSError):
            self.write(restored)
            by_age = sorted(self._folder.iterdir(), key=lambda one: one.stat().st_mtime)
            for old in by_age[:-KEPT]:
                old.unlink(missing_ok=True)

    def _path(self, image_id: str) -> Path:
        name = "".join(letter for letter in image_id if letter.isalnum() or letter == "-")
        return self._folder / f"{name[:100]}.json"


def remember(
    tools: Toolbox,
    image: Image,
    started: str,
    pids: tuple[int, ...],
    files: tuple[tuple[int, int], ...],
) -> None:
    """Write down which processes an image has become, for the next who wants to restore it."""
    now = (tools.proc.process(pid) for pid in pids)
    ledger = Ledger(tools.state_dir)
    boot_id = tools.host.facts().boot_id
    before = ledger.last(image.manifest.image_id)
    known = before.known if before is not None and before.boot_id == boot_id else ()
    ledger.add(
        Restored(
            image_id=image.manifest.image_id,
            image=str(image.path),
            at=started,
            boot_id=boot_id,
            processes=tuple(one.ref for one in now if one is not None),
            files=files,
            copies=tuple(one for one in known if tools.proc.alive(one)),
        )
    )
