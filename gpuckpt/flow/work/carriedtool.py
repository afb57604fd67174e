"""The files that an image carries, as the flow sees them: a part of the toolbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpuckpt.model import Carriage, CarriedFile
    from gpuckpt.tools.cutting import Cut
    from gpuckpt.tools.putting import Identity, User
    from gpuckpt.tools.usedfiles import Listing, Opened, UsedFile


class CarriedTool(Protocol):
    """Files in memory, or without the name the job knows; tools.carried and tools.putting."""

    def used(self, pids: Iterable[int], reach: Callable[[str], str] = ...) -> tuple[UsedFile, ...]:
        """Return the regular files that processes have open or mapped, found by `reach`."""

    def used_of(
        self, tree: Iterable[Opened], reach: Callable[[str], str] = ...
    ) -> tuple[UsedFile, ...]:
        """Return the same of processes whose descriptors and mappings are known already."""

    def listed(self, path: str, most: int, leave: Iterable[str] = ...) -> Listing:
        """Return the regular files at a path or below it; OSError if it cannot be read."""

    def is_program(self, path: str) -> bool:
        """Whether a file is a program or a library."""

    def readable(self, path: str) -> str:
        """Return why a file cannot be read, "" if it can be."""

    def examine(
        self,
        paths: Mapping[str, bool],
        links: Collection[str],
        pids: Iterable[int] = ...,
        work: Mapping[str, Carriage] = ...,
    ) -> tuple[CarriedFile, ...]:
        """Describe each of these files of the processes once; OSError if one cannot be read."""

    def copy(self, file: CarriedFile, into: int) -> str:
        """Write a file's extents into a descriptor and return their digest, or OSError."""

    def identity(self, path: str) -> Identity | None:
        """Return what a name means now, None if nothing."""

    def make_folder(self, path: str, mode: int, uid: int, gid: int) -> tuple[int, int]:
        """Make a folder and return its device and inode; OSError if something has its name."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder unless something lies in it; OSError if it may not be removed."""

    def matches(self, path: str, file: CarriedFile, check: Callable[[], None] = ...) -> bool:
        """Whether the bytes at `path`, as many as were recorded, are those."""

    def users(self, files: Collection[tuple[int, int]]) -> dict[tuple[int, int], User]:
        """Return those files, by device and inode, that a process has, and who."""

    def room(self, folder: str) -> int | None:
        """Return the bytes that fit into a folder, None if it takes no names."""

    def make(
        self, file: CarriedFile, source: int, spare: str, check: Callable[[], None] = ...
    ) -> int:
        """Make a file, nameless if it can be, of the bytes that `source` gives, or OSError."""

    def name(self, fd: int, path: str) -> None:
        """Give an open file a name that nothing has; OSError if that fails."""

    def link(self, path: str, name: str) -> None:
        """Give a file a further name that nothing has; OSError if that fails."""

    def move(self, path: str, name: str) -> None:
        """Rename a file to a name that nothing has; OSError if that fails."""

    def keep_later(self, cut: Cut, check: Callable[[], None] = ...) -> None:
        """Write the later bytes of a file beside it; OSError if that fails."""

    def shorten(self, cut: Cut, mtime_ns: int) -> None:
        """Take the later bytes from a file; OSError if somebody has written to it."""

    def rejoin(self, cut: Cut) -> None:
        """Give a file its later bytes back, if it lacks them; OSError if that fails."""
