"""Folders with files that an image carries, and restores of them that are cut short anywhere."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from msgspec.structs import replace

from gpuckpt.flow.leftovers.placed import clear
from gpuckpt.flow.returning.placing import Placing
from gpuckpt.flow.returning.target.fileplan import Act, FileStep, file_plan
from gpuckpt.flow.returning.target.standing import standings
from gpuckpt.image.outside import FileRecord, FolderRecord, Outside
from gpuckpt.image.store import Image
from gpuckpt.model import Carriage
from tests import image_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.flow.work.traces import Placed
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.cutting import Cut

# what changes something on a disk
CALLS = (
    *("link", "unlink", "rename", "mkdir", "rmdir", "open", "write", "pwrite", "ftruncate"),
    *("utime", "fchown", "fchmod", "fsync"),
)


_LOG = os.O_WRONLY | os.O_APPEND


class Killed(BaseException):
    """The end of a gpuckpt that could do nothing more."""


class Striking:
    """Counts what is done to files, by this thread, and strikes at the n-th of these calls."""

    def __init__(self, number: int, when: str, what: Callable[[], BaseException]) -> None:
        self.number = number
        self.when = when
        self.what = what
        self.calls: list[str] = []
        self._thread = threading.get_ident()

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread:
                return real(*args, **named)
            self.calls.append(name)
            hit = len(self.calls) == self.number
            if hit and self.when == "before":
                raise self.what()
            result = real(*args, **named)
            if hit:
                if name == "open":
                    os.close(result)
                raise self.what()
            return result

        return call


@contextmanager
def striking(
    number: int = 0, when: str = "before", what: Callable[[], BaseException] = Killed
) -> Iterator[Striking]:
    """Let a call fail, before or after its effect; with 0 only count."""
    found = Striking(number, when, what)
    real = {name: getattr(os, name) for name in CALLS} | {"fsync": lambda _: None}  # much quicker
    patches = {name: found.wrapped(name, call) for name, call in real.items()}
    with mock.patch.multiple(os, **patches):
        yield found


def failure() -> OSError:
    """Return what a broken disk says."""
    return OSError(5, "Input/output error")


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return all that can be seen of a folder and what is below it."""
    found: dict[str, tuple[Any, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            seen = path.lstat()
            what: tuple[Any, ...] = (oct(seen.st_mode), seen.st_uid, seen.st_gid)
            if stat.S_ISREG(seen.st_mode):
                what += (seen.st_ino, seen.st_nlink, seen.st_mtime_ns, path.read_bytes())
            found[str(path.relative_to(folder))] = what
    return found


class Restoring:
    """The file plan of one image on these files, again and again; nobody else works there."""

    def __init__(self, tools: Toolbox, image: Image, choice: Any = "refuse") -> None:
        self.tools = tools
        self.image = image
        manifest = image.manifest
        folders = {one.path: os.path.lexists(one.path) for one in manifest.outside.folders}
        found = standings(tools, manifest, "boot")
        self.steps = file_plan(manifest, found, folders, choice)
        self.noted: tuple[tuple[Placed, ...], tuple[Cut, ...]] = ((), ())
        self.placing = Placing(tools, image, self.steps, self._note)

    def _note(self, placed: tuple[Placed, ...], cuts: tuple[Cut, ...]) -> None:
        self.noted = placed, cuts

    def acts(self) -> dict[str, Act]:
        return {Path(one.path).name: one.act for one in self.steps}

    def step(self, name: str) -> FileStep:
        return next(one for one in self.steps if Path(one.path).name == name)

    def put(self) -> None:
        self.placing.put(lambda _: None)

    def repair(self) -> None:
        """Do what `gpuckpt repair` does: from the journal alone."""
        clear(self.tools, *self.noted, job_stands=False)


def image_of(
    tools: Toolbox,
    names: list[Path],
    folder: Path,
    logs: tuple[Path, ...] = (),
    read: tuple[Path, ...] = (),
    **changes: Any,
) -> Image:
    """Write an image that carries these files as the job's work, and knows the folders of them.

    All are written to, those of `logs` only at their ends, but for those of `read`.
    """
    found = tools.carried.examine({str(name): True for name in names}, ())
    files: list[CarriedFile] = []
    with (folder / "bytes").open("wb") as into:
        for one in found:
            digest = tools.carried.copy(one, into.fileno())
            files.append(replace(one, **{"digest": digest, "why": Carriage.WRITTEN} | changes))
    above = sorted({name.parent for name in names})
    outside = Outside(
        files=tuple(
            _open(path, _LOG if path in logs else os.O_RDWR) for path in names if path not in read
        ),
        listeners=(),
        terminals=(),
        folders=tuple(_folder(path) for path in above),
    )
    stored = {"gpuckpt-files": (folder / "bytes").read_bytes()}
    path = image_samples.write_image(
        folder / "image", stored, carried=tuple(files), outside=outside
    )
    return Image.open(path)


def _open(path: Path, flags: int) -> FileRecord:
    seen = path.stat()
    return FileRecord(
        path=str(path),
        size=seen.st_size,
        mode=seen.st_mode,
        build_id="",
        mtime_ns=None,
        flags=flags,
    )


def _folder(path: Path) -> FolderRecord:
    seen = path.stat()
    mode = stat.S_IMODE(seen.st_mode)
    return FolderRecord(path=str(path), mode=mode, uid=seen.st_uid, gid=seen.st_gid)
