"""Putting back the files that an image carries, before CRIU looks for them.

What is made, and what is moved out of the way, is in the journal before it has a name; a folder,
which is known by what it has become, as soon as it has one. If the restore fails all of it goes
again; if it succeeds the job's files stay, CRIU's names go.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec import structs
from msgspec.structs import replace

from gpuckpt.errors import GpuckptError, RestoreFailed
from gpuckpt.flow.leftovers.placed import clear
from gpuckpt.flow.returning.target.standing import State
from gpuckpt.flow.work.journal import Placed
from gpuckpt.image.names import CARRIED
from gpuckpt.image.unpack import Unpacker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuckpt.flow.returning.target.standing import Standing
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.outside import FolderRecord
    from gpuckpt.image.store import Image
    from gpuckpt.model import CarriedFile
    from gpuckpt.tools.pidspace import Space

# files are open while they have no name; the usual limit is 1024 a process
BATCH: Final = 256
_PIECE: Final = 1 << 20


class Placing:
    """The carried files of one restore; `note` writes down what has been made."""

    def __init__(
        self,
        tools: Toolbox,
        image: Image,
        standings: Sequence[Standing],
        note: Callable[[tuple[Placed, ...]], None],
    ) -> None:
        """Touch nothing yet."""
        self.tools = tools
        self.image = image
        self.standings = standings
        self.folders = image.manifest.outside.folders
        self.placed: tuple[Placed, ...] = ()
        self._note = note

    def enter(self, space: Space) -> None:
        """Put into a namespace what it has for itself, by the paths under which it is found there.

        These were not looked for: nothing is there yet.
        """
        self.standings = tuple(
            replace(one, file=_reached(one.file, space)) for one in self.standings
        )
        self.folders = tuple(
            structs.replace(one, path=space.reach(one.path)) for one in self.folders
        )

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.standings or self._missing())

    @property
    def bytes(self) -> int:
        """How many bytes have to be written."""
        return sum(one.file.bytes for one in self.standings if _is_made(one))

    @property
    def inodes(self) -> tuple[tuple[int, int], ...]:
        """Device and inode of each file, once all are placed."""
        return tuple((one.device, one.inode) for one in self.placed if not one.folder)

    def put(self, advance: Callable[[int], None]) -> None:
        """Make what is missing and link what is there.

        Raises:
            RestoreFailed: a file cannot be made, or a name was taken meanwhile.
            ImageError: the image's bytes are not those that were written.
        """
        try:
            self._folders()
            with self._bytes() as source:
                for start in range(0, len(self.standings), BATCH):
                    self._put(self.standings[start : start + BATCH], source, advance)
        except OSError as why:
            what = why.filename2 or why.filename or "a file in memory"
            raise RestoreFailed(
                f"the job's {what} could not be put back: {why.strerror}",
                hint="Look at it again with `gpuckpt plan IMAGE`.",
            ) from why

    def take_back(self) -> None:
        """Remove all that was made and put back what was moved."""
        clear(self.tools, self.placed, job_stands=False)

    def settle(self) -> None:
        """Leave to the job what is its own; what resists is only litter by now."""
        with suppress(OSError):
            clear(self.tools, self.placed, job_stands=True)

    def _missing(self) -> list[FolderRecord]:
        return [one for one in self.folders if self.tools.carried.identity(one.path) is None]

    def _folders(self) -> None:
        """Make the folders that went with a boot, say, each within the one before."""
        for one in self._missing():
            device, inode = self.tools.carried.make_folder(one.path, one.mode, one.uid, one.gid)
            self.placed += (Placed(device=device, inode=inode, names=(one.path,), folder=True),)
            self._note(self.placed)

    def _put(self, batch: Sequence[Standing], source: int, advance: Callable[[int], None]) -> None:
        made: list[tuple[int, Standing, Placed]] = []
        try:
            for one in batch:
                made.append(self._made(one, source))
                advance(one.file.bytes if _is_made(one) else 0)
            self.placed += tuple(placed for _, _, placed in made)
            self._note(self.placed)
            for fd, one, placed in made:
                self._name(fd, one, placed)
        finally:
            for fd, _, _ in made:
                if fd >= 0:
                    os.close(fd)

    def _made(self, one: Standing, source: int) -> tuple[int, Standing, Placed]:
        """Make a file without a name; say which names it is going to have."""
        file = one.file
        if one.state is State.TAKEN:  # refused, unless somebody overrides that
            raise FileExistsError(17, "File exists", one.path)
        if not _is_made(one):
            _skip(source, file.bytes)
            names = [path for path in file.names if self.tools.carried.identity(path) is None]
            return (
                -1,
                one,
                Placed(device=one.device, inode=one.inode, names=tuple(names), link=file.link),
            )
        aside = [path for path in file.names if self.tools.carried.identity(path) is not None]
        if aside and one.state is State.MISSING:
            raise FileExistsError(17, "File exists", aside[0])
        fd = self.tools.carried.make(file, source)
        seen = os.fstat(fd)
        moved = tuple((path, _beside(path)) for path in aside)
        return (
            fd,
            one,
            Placed(
                device=seen.st_dev, inode=seen.st_ino, names=file.names, link=file.link, aside=moved
            ),
        )

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
                raise FileExistsError(17, "it has become another file", one.path)

    @contextmanager
    def _bytes(self) -> Iterator[int]:
        """Give a descriptor from which all files' bytes come, one after the other."""
        if not any(_is_made(one) and one.file.bytes for one in self.standings):
            with open(os.devnull, "rb") as nothing:  # noqa: PTH123
                yield nothing.fileno()
            return
        read, write = os.pipe()
        unpacker = Unpacker(self.image)
        failed: list[GpuckptError] = []

        def send() -> None:
            try:
                with suppress(BrokenPipeError):
                    unpacker.send(CARRIED, write)
            except GpuckptError as why:
                failed.append(why)
            finally:
                os.close(write)

        sender = threading.Thread(target=send, name="carried")
        sender.start()
        try:
            yield read
        except OSError as why:
            os.close(read)
            read = -1
            sender.join()
            if failed:
                raise failed[0] from why
            raise
        finally:
            if read >= 0:
                os.close(read)
            sender.join()
            unpacker.close()


def _is_made(one: Standing) -> bool:
    return one.state in {State.MISSING, State.STALE}


def _reached(file: CarriedFile, space: Space) -> CarriedFile:
    names = tuple(space.reach(name) for name in file.names)
    return replace(file, names=names, link=space.reach(file.link))


def _beside(path: str) -> str:
    return f"{path.rpartition('/')[0]}/.gpuckpt-{os.urandom(8).hex()}"


def _skip(source: int, count: int) -> None:
    while count and (piece := os.read(source, min(_PIECE, count))):
        count -= len(piece)
