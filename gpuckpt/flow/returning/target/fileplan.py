"""What a restore does about files: one list of steps, made from facts before anything is done.

The same list is shown by a plan, judged by the rules, and carried out.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING

from gpuckpt.flow.returning.target.standing import Standing, State
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    from gpuckpt.image.manifest import Manifest

    Choice = Literal["refuse", "keep", "replace"]


class Act(StrEnum):
    """What is done to one path.

    FOLDER: it is made. MAKE: the image's file is put there. RENEW: the same, in place of the job's
    old memory, which goes. CUT: later bytes are taken from it and kept. REPLACE: it is moved aside
    and kept, and the image's is put there. LEAVE: nothing. REFUSE: then nothing is done at all.
    """

    FOLDER = "make-folder"
    MAKE = "make"
    RENEW = "renew"
    CUT = "truncate"
    REPLACE = "replace"
    LEAVE = "leave"
    REFUSE = "refuse"


MADE = frozenset({Act.MAKE, Act.RENEW, Act.REPLACE})
_JOURNALS = ("-journal", "-wal")


class FileStep(Value, frozen=True):
    """One step: `bytes` are written for it, `size` is what the file has then.

    `aside` are names of today's bytes, by the names they have now; `why` gives the reason where
    there was a choice. `standing` is what it was made from, None for a folder.
    """

    act: Act
    path: str
    bytes: int = 0
    size: int = 0
    aside: tuple[tuple[str, str], ...] = ()
    why: str = ""
    standing: Standing | None = None

    @property
    def made(self) -> bool:
        """Whether the image's bytes are put there."""
        return self.act in MADE

    @property
    def words(self) -> str:
        """The step in one line, for people."""
        kept = self.aside[0][1] if self.aside else ""
        return {
            Act.FOLDER: f"make the folder {self.path}",
            Act.MAKE: f"make {self.path}",
            Act.RENEW: f"make {self.path} anew",
            Act.CUT: f"truncate {self.path} to {self.size} bytes, keep the later ones in {kept}",
            Act.REPLACE: f"replace {self.path}, keep today's as {kept}",
            Act.LEAVE: f"leave {self.path} as it is",
            Act.REFUSE: f"{self.path} cannot be put back",
        }[self.act] + (f": {self.why}" if self.why else "")


def file_plan(
    manifest: Manifest,
    standings: Iterable[Standing],
    folders: Mapping[str, bool],
    choice: Choice = "refuse",
) -> tuple[FileStep, ...]:
    """Return all steps, in the order in which they are done: folders, then the image's files.

    `folders` tells which of those that a restore makes are there.
    """
    logs = {
        one.path
        for one in manifest.outside.files
        if one.flags & os.O_APPEND and one.flags & os.O_ACCMODE == os.O_WRONLY
    }
    made = (one.path for one in manifest.outside.folders if not folders.get(one.path, True))
    return (
        *(FileStep(Act.FOLDER, path) for path in made),
        *(_step(one, choice, logs) for one in standings),
    )


def journals(manifest: Manifest, steps: Iterable[FileStep]) -> tuple[str, ...]:
    """Return the names that a journal of SQLite would have beside what the image's bytes go to.

    Those that the image knows are as they were themselves.
    """
    known = {one.path for one in manifest.outside.files}
    known.update(name for one in manifest.carried for name in one.names)
    put = (step.standing for step in steps if step.made or step.act is Act.CUT)
    names = (name for one in put if one is not None for name in one.file.names)
    beside = (f"{name}{ending}" for name in names for ending in _JOURNALS)
    return tuple(one for one in beside if one not in known)


def _step(one: Standing, choice: Choice, logs: set[str]) -> FileStep:
    size = one.file.size
    if one.state is State.MISSING:
        return FileStep(Act.MAKE, one.file.path, one.file.bytes, size, standing=one)
    if one.state is State.STALE:
        return FileStep(Act.RENEW, one.path, one.file.bytes, size, standing=one)
    if one.state is State.TAKEN:
        return FileStep(Act.REFUSE, one.path, why=one.why, standing=one)
    if one.state is State.THERE:
        return FileStep(Act.LEAVE, one.path, size=one.size, standing=one)
    return _changed(one, choice, is_log=not logs.isdisjoint(one.file.names))


def _changed(one: Standing, choice: Choice, *, is_log: bool) -> FileStep:
    """Decide on the job's own work, of which more than the image's bytes is at stake."""
    grown, size = one.state is State.GROWN, one.file.size
    if choice == "keep":
        why = "--files keep: the job goes on with it"
        return FileStep(Act.LEAVE, one.path, size=one.size, why=why, standing=one)
    if one.writes and grown and is_log:
        why = f"process {one.pid} writes to it, and the job goes on at its end"
        return FileStep(Act.LEAVE, one.path, size=one.size, why=why, standing=one)
    if one.writes:
        return FileStep(Act.REFUSE, one.path, why=f"process {one.pid} writes to it", standing=one)
    if grown:
        later = ((one.path, one.later(one.path)),)
        return FileStep(Act.CUT, one.path, one.size - size, size, later, standing=one)
    if choice == "refuse":
        return FileStep(Act.REFUSE, one.path, why=one.why, standing=one)
    aside = tuple((path, one.replaced(path)) for path in one.names)
    return FileStep(Act.REPLACE, one.path, one.file.bytes, size, aside, one.why, standing=one)
