"""Carrying out the file plan of a restore, before CRIU looks for the files.

What is made, moved out of the way or shortened is in the journal before it has a name or is
touched; what a folder has become, as soon as it has one. If the restore fails all is undone; if it
succeeds the job's files stay, with what was kept aside for the user, and CRIU's names go.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import structs
from msgspec.structs import replace

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.leftovers.placed import clear
from gpuckpt.flow.returning.pouring import carried_bytes, skip
from gpuckpt.flow.returning.target.fileplan import Act
from gpuckpt.flow.work.traces import Placed
from gpuckpt.tools.cutting import Cut
from gpuckpt.tools.pidspace import own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuckpt.flow.returning.target.fileplan import FileStep
    from gpuckpt.flow.returning.target.standing import Standing
    from gpuckpt.flow.work.operation import Operation
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.outside import FolderRecord, RemapRecord
    from gpuckpt.image.store import Image
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.pidspace import Space

# files are open while they have no name; the usual limit is 1024 a process
BATCH: Final = 256

Doing = tuple["FileStep", "Standing"]


class Placing:
    """The file plan of one restore.

    `note` writes down what is going to be done, as `placed` and `cuts`; the `operation` says to
    people what becomes of files that are here, and may be interrupted. `ghosts` are names that CRIU
    makes; `apart`: the job gets memory of its own.
    """

    def __init__(
        self,
        tools: Toolbox,
        image: Image,
        steps: Sequence[FileStep],
        note: Callable[..., None],
        operation: Operation | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """Touch nothing yet."""
        self.tools = tools
        self.image = image
        self.steps = [(step, step.standing) for step in steps if step.standing is not None]
        wanted = {step.path for step in steps if step.act is Act.FOLDER}
        self.folders = [one for one in image.manifest.outside.folders if one.path in wanted]
        self.placed: tuple[Placed, ...] = ()
        self.cuts: tuple[Cut, ...] = ()
        self.ghosts: tuple[Placed, ...] = tuple(_ghosts(image.manifest.outside.remaps, apart=apart))
        self._note = note
        self._tell = operation.record.reporter.note if operation else lambda _: None
        self._check = operation.interrupts.check if operation else lambda: None

    def enter(self, space: Space) -> None:
        """Put into a namespace what it has for itself, by the paths under which it is found there.

        These were not looked for: nothing is there yet.
        """
        self.steps = [
            (step, replace(one, file=_reached(one.file, space))) for step, one in self.steps
        ]
        self.folders = [structs.replace(one, path=space.reach(one.path)) for one in self.folders]

    @property
    def made(self) -> tuple[Placed, ...]:
        """Return what may have been made by now, by us or by CRIU."""
        return (*self.ghosts, *self.placed)

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.steps or self._missing())

    @property
    def bytes(self) -> int:
        """How many bytes have to be written."""
        return sum(step.bytes for step, _ in self.steps)

    @property
    def inodes(self) -> tuple[tuple[int, int], ...]:
        """Device and inode of each file, once all are placed."""
        return tuple((one.device, one.inode) for one in self.placed if not one.folder)

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """Return what was taken from its place for the job and is kept: path, and where it is."""
        replaced = (pair for one in self.placed if one.kept for pair in one.aside)
        return (*((one.path, one.aside) for one in self.cuts), *replaced)

    def put(self, advance: Callable[[int], None]) -> None:
        """Do all steps.

        Raises:
            RestoreFailed: one cannot be done, or a file is not as it was looked at.
            ImageError: the image's bytes are not those that were written.
        """
        for step, _ in self.steps:
            if step.act in {Act.CUT, Act.REPLACE}:
                self._tell(step.words)
        try:
            self._folders()
            self._cut(advance)
            wanted = any(step.made and step.bytes for step, _ in self.steps)
            with carried_bytes(self.image, wanted=wanted) as source:
                for start in range(0, len(self.steps), BATCH):
                    self._put(self.steps[start : start + BATCH], source, advance)
        except OSError as why:
            what = why.filename2 or why.filename or "a file in memory"
            raise RestoreFailed(
                f"the job's {what} could not be put back: {why.strerror}",
                hint="Look at it again with `gpuckpt plan IMAGE`.",
            ) from why

    def take_back(self) -> None:
        """Undo all that was done."""
        clear(self.tools, self.made, self.cuts, job_stands=False)

    def settle(self) -> None:
        """Leave to the job what is its own; what resists is only litter by now."""
        with suppress(OSError):
            clear(self.tools, self.made, self.cuts, job_stands=True)

    def _missing(self) -> list[FolderRecord]:
        return [one for one in self.folders if self.tools.carried.identity(one.path) is None]

    def _folders(self) -> None:
        """Make the folders that went with a boot, say, each within the one before."""
        if not (missing := self._missing()):
            return
        self.placed = tuple(Placed(names=(one.path,), folder=True) for one in missing)
        self._note(placed=self.made, cuts=self.cuts)
        for number, one in enumerate(missing):
            device, inode = self.tools.carried.make_folder(one.path, one.mode, one.uid, one.gid)
            made = structs.replace(self.placed[number], device=device, inode=inode)
            self.placed = (*self.placed[:number], made, *self.placed[number + 1 :])
        self._note(placed=self.made, cuts=self.cuts)

    def _cut(self, advance: Callable[[int], None]) -> None:
        """Shorten what has only grown, its later bytes being on disk beside it."""
        wanted = [
            (_cut(one, step.aside[0][1]), one) for step, one in self.steps if step.act is Act.CUT
        ]
        if wanted:
            self.cuts = tuple(cut for cut, _ in wanted)
            self._note(placed=self.made, cuts=self.cuts)
        for cut, one in wanted:
            self.tools.carried.keep_later(cut, self._check)
            self.tools.carried.shorten(cut, one.file.mtime_ns)
            advance(cut.was - cut.size)

    def _put(self, batch: Sequence[Doing], source: int, advance: Callable[[int], None]) -> None:
        made: list[tuple[int, Standing, Placed]] = []
        spares = {one.file.path: _hidden() for step, one in batch if step.made}
        known = self.placed
        if spares:  # where a file cannot be made without a name, a kill would leave it
            names = ((path, spare) for path, spare in spares.items())
            self.placed += tuple(Placed(spare=_beside(path, spare)) for path, spare in names)
            self._note(placed=self.made, cuts=self.cuts)
        try:
            for step, one in batch:
                made.append(self._made(step, one, source, spares.get(one.file.path, "")))
                advance(step.bytes if step.made else 0)
            self.placed = (*known, *(placed for _, _, placed in made))
            self._note(placed=self.made, cuts=self.cuts)
            for fd, one, placed in made:
                self._name(fd, one, placed)
        finally:
            for fd, _, _ in made:
                if fd >= 0:
                    os.close(fd)

    def _made(
        self, step: FileStep, one: Standing, source: int, spare: str
    ) -> tuple[int, Standing, Placed]:
        """Make a file without a name; say which names it is going to have."""
        file = one.file
        if step.act is Act.REFUSE:  # unless somebody overrides that, a restore has not begun
            raise FileExistsError(errno.EEXIST, "File exists", one.path)
        there = [path for path in file.names if self.tools.carried.identity(path) is not None]
        if not step.made:
            skip(source, file.bytes)
            names = tuple(path for path in file.names if path not in there)
            done = Placed(device=one.device, inode=one.inode, names=names, link=file.link)
            return -1, one, done
        moved = step.aside
        if step.act is Act.RENEW:
            moved = tuple((path, _beside(path, _hidden())) for path in there)
        if unplanned := set(there).difference(path for path, _ in moved):
            raise FileExistsError(errno.EEXIST, "File exists", min(unplanned))
        self._same(step, one)
        fd = self.tools.carried.make(file, source, spare, self._check)
        seen = os.fstat(fd)
        done = Placed(
            device=seen.st_dev,
            inode=seen.st_ino,
            names=file.names,
            link=file.link,
            aside=moved,
            kept=step.act is Act.REPLACE,
            spare=_beside(file.path, spare) if seen.st_nlink else "",
        )
        return fd, one, done

    def _same(self, step: FileStep, one: Standing) -> None:
        """See that what is replaced is what was looked at: nobody has agreed to more."""
        if step.act is not Act.REPLACE:
            return
        now = self.tools.carried.identity(one.path)
        if now is None or (now.device, now.inode, now.size, now.mtime_ns) != (
            one.device,
            one.inode,
            one.size,
            one.mtime_ns,
        ):
            raise OSError(errno.EBUSY, "somebody has written to it just now", one.path)

    def _name(self, fd: int, one: Standing, placed: Placed) -> None:
        tools = self.tools.carried
        for path, other in placed.aside:
            tools.move(path, other)
        for path in (*placed.names, *([placed.link] if placed.link else [])):
            if fd >= 0:
                tools.name(fd, path)
                continue
            tools.link(one.path, path)
            now = tools.identity(path)
            if now is None or (now.device, now.inode) != (one.device, one.inode):
                raise FileExistsError(errno.EEXIST, "it has become another file", one.path)
        if placed.spare:
            self.tools.files.remove(placed.spare)


def _ghosts(remaps: Iterable[RemapRecord], *, apart: bool) -> Iterator[Placed]:
    """Return the names that CRIU gives to deleted files for a moment: they were free at the gates.

    If it is killed in that moment, they stay. In memory of its own the job takes them with it.
    """
    names = (one.name for one in remaps if not one.linked)
    yield from (Placed(spare=name) for name in names if not (apart and own_memory(name)))


def _reached(file: CarriedFile, space: Space) -> CarriedFile:
    names = tuple(space.reach(name) for name in file.names)
    return replace(file, names=names, link=space.reach(file.link))


def _hidden() -> str:
    return f".gpuckpt-{os.urandom(8).hex()}"


def _beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


def _cut(one: Standing, aside: str) -> Cut:
    return Cut(one.path, one.device, one.inode, one.file.size, one.size, one.mtime_ns, aside)
