"""Knowing the files that stay outside of an image: by build-id, or by a digest of their bytes.

Read while the job still runs, for that takes time; when it is frozen one look tells whether a file
is still the one that was read. Only what has come or changed since is read then.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.tools.digest import Digest
    from gpuckpt.tools.usedfiles import UsedFile


# who has looked up a user maps these files, and a daemon writes to them for as long as it runs
_LIVING: Final = ("/var/lib/sss/mc/", "/var/cache/nscd/", "/run/nscd/", "/var/db/nscd/")


class Print(Value, frozen=True):
    """What tells a file from others: a build-id, or a digest, `sampled` or of all bytes."""

    build_id: str = ""
    digest: str = ""
    sampled: bool = False


class References:
    """The files of one dump that stay outside; with `full` all bytes of large ones are read."""

    def __init__(self, tools: Toolbox, *, full: bool) -> None:
        """Read nothing yet."""
        self._tools = tools
        self._full = full
        self._known: dict[UsedFile, Print] = {}

    def read(
        self,
        files: Iterable[UsedFile],
        known: Mapping[str, Digest],
        on_bytes: Callable[[int], None],
    ) -> None:
        """Read files while their job runs, but those of which digests are `known` already.

        `on_bytes` is told of what was read; what it raises ends the reading.
        """
        for one in files:
            on_bytes(0)
            self._known[_as_it_is(one)] = _known(one, known) or self._print(one, on_bytes)

    def of(self, file: UsedFile) -> Print:
        """Return what is known of a file of the frozen tree, which is read if need be."""
        found = self._known.get(_as_it_is(file))
        return self._print(file, _untold) if found is None else found

    def _print(self, file: UsedFile, on_bytes: Callable[[int], None]) -> Print:
        """What the job writes is known by nothing: it is going to change. Nor is what is unread."""
        if not file.names or file.written or file.path.startswith(_LIVING):
            return Print()
        path = file.names[0]
        seen = self._tools.files.look(path, build_id=True)
        if seen is None or seen.build_id:
            return Print(seen.build_id if seen else "")
        with suppress(OSError):
            found = self._tools.files.digest(path, full=self._full, on_bytes=on_bytes)
            return Print("", found.hex, found.sampled)
        return Print()


def _as_it_is(file: UsedFile) -> UsedFile:
    """Return what of a file says that its bytes are the same: who uses it how does not."""
    return type(file)(
        path="",
        device=file.device,
        inode=file.inode,
        size=file.size,
        mtime_ns=file.mtime_ns,
        ctime_ns=file.ctime_ns,
        written=file.written,
    )


def _known(file: UsedFile, digests: Mapping[str, Digest]) -> Print | None:
    """Return what somebody else has read of the very same file."""
    found = digests.get(file.names[0]) if file.names and not file.written else None
    if found is None or (found.size, found.mtime_ns) != (file.size, file.mtime_ns):
        return None
    return Print("", found.hex, found.sampled)


def _untold(_: int) -> None:
    pass
