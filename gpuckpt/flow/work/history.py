"""What earlier operations took: one small file each, from which a forecast learns.

Remembering is a favour to the next plan: nothing here ever fails the operation it tells of.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import msgspec

from gpuckpt.account import Account
from gpuckpt.image import wire
from gpuckpt.model import Attempt, Lost
from gpuckpt.timing import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuckpt.image.manifest import Manifest

FOLDER = "receipts"
KEPT = 200
DONE = "done"
# the operation of a start from the beginning, in place of a restore
COLD = "cold-start"
_FAILED = "-failed"
# what is done only if somebody asks for a proof, and no part of what the same without it takes
PROOF = frozenset({"digest", "gpu-turn", "prove"})
_LONGEST_COMMAND = 200


def proving(receipt: Receipt, inside: str | None = None) -> float:
    """Return the seconds that a proof took: all of them, or those within a phase."""
    ours = (one for one in receipt.phases if one.name in PROOF)
    return sum(one.seconds for one in ours if inside is None or one.inside == inside)


def until_it_ran(receipt: Receipt) -> float | None:
    """Return what of a restore was forecast: the seconds until the job ran, without a proof's."""
    runs = receipt.interval("runs")
    return runs and runs - proving(receipt)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One finished operation. Sizes in bytes, 0 where it has none; times in seconds.

    `outcome` is "done", or the name of the error it ended with. `cuda` counts the processes with
    CUDA among `processes`; `expected` is what was forecast for it, None if nothing was: the pause
    of a dump, the seconds until it runs of a restore. `image` is where the image was, by
    `image_id` it is known. `account` is what a restore tells beside its times, `attempts` are what
    was tried before, `lost` is what it could not bring.
    """

    operation: str
    started: str
    receipt: Receipt
    command: str = ""
    raw: int = 0
    stored: int = 0
    gpu_bytes: int = 0
    processes: int = 0
    cuda: int = 0
    host: str = ""
    driver: str = ""
    pause: float = 0.0
    expected: float | None = None
    outcome: str = DONE
    image_id: str = ""
    image: str = ""
    account: Account | None = None
    attempts: tuple[Attempt, ...] = ()
    lost: Lost | None = None

    @property
    def took(self) -> float | None:
        """What became of what was `expected`; None if that was never reached."""
        return until_it_ran(self.receipt) if self.operation == "restore" else self.pause or None


class History:
    """The records under one state directory."""

    def __init__(self, state_dir: Path) -> None:
        """Know the place; it is made with the first record."""
        self._folder = state_dir / FOLDER

    def add(self, record: Record) -> Path | None:
        """Keep a record, and of all only the newest; None, silently, where that cannot be done.

        Failed ones are counted apart: one that is tried in a loop pushes out nobody else's.
        """
        with suppress(OSError, msgspec.MsgspecError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            moment = record.started.replace(":", "").replace("-", "")
            failed = "" if record.outcome == DONE else _FAILED
            name = f"{moment}-{record.operation}{failed}-{uuid4().hex[:8]}.json"
            path = self._folder / name
            fresh = path.with_suffix(".new")
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(wire.to_json(record))
            fresh.rename(path)
            every = sorted(self._folder.glob("*.json"))
            alike = [one for one in every if (_FAILED in one.name) == bool(failed)]
            for old in alike[:-KEPT]:
                old.unlink(missing_ok=True)
            return path
        return None

    def records(self) -> tuple[Record, ...]:
        """Return every record that can be read, oldest first."""
        return tuple(record for _, record in self._records(b""))

    def of_image(self, image_id: str) -> tuple[Record, ...]:
        """Return the records of an image's dump, and of its restores, oldest first."""
        return tuple(record for _, record in self.files_of_image(image_id))

    def files_of_image(self, image_id: str) -> tuple[tuple[Path, Record], ...]:
        """Return the same, each with its file."""
        found = self._records(image_id.encode())
        return tuple((path, _true(one)) for path, one in found if one.image_id == image_id)

    def _records(self, with_: bytes) -> Iterator[tuple[Path, Record]]:
        with suppress(OSError):
            for path in sorted(self._folder.glob("*.json")):
                with suppress(OSError, msgspec.MsgspecError):
                    if with_ in (raw := path.read_bytes()):
                        # texts stay as they are written: to read them back takes a millisecond each
                        yield path, msgspec.json.decode(raw, type=Record)


def _true(record: Record) -> Record:
    """Return a record with its texts as they were before they were written."""
    plain = wire.unescape(cast("wire.Plain", msgspec.to_builtins(record, str_keys=True)))
    return msgspec.convert(plain, Record, str_keys=True)


def record_of(manifest: Manifest, receipt: Receipt) -> Record:
    """Return the record of an operation on the job of an image."""
    root = next((one for one in manifest.tree if one.pid == manifest.root_pid), manifest.tree[0])
    return Record(
        operation=receipt.operation,
        started=receipt.started,
        receipt=receipt,
        command=command(root.argv, root.comm),
        raw=manifest.totals.raw,
        stored=manifest.totals.stored,
        gpu_bytes=sum(use.bytes for use in manifest.nvidia.uses) if manifest.nvidia else 0,
        processes=len(manifest.tree),
        cuda=len(manifest.cuda),
        host=manifest.host.hostname,
        driver=manifest.nvidia.driver if manifest.nvidia else "",
        image_id=manifest.image_id,
    )


def command(argv: tuple[str, ...], comm: str) -> str:
    """Return a command line as records are compared by it."""
    return (" ".join(argv) or comm)[:_LONGEST_COMMAND]
