"""The journal: what is about to be done to which processes, on disk before it is done.

One small JSON file per operation under the state directory, synced at every dangerous step and
removed when the operation has ended with nothing left to repair. A file whose owner is dead is
the trace of an operation that was cut short. What cannot be read, or was written by a newer
gpuckpt, is told of and left alone.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gpuckpt.errors import DumpFailed, NotWritable, ProcessUnfit, RestoreFailed
from gpuckpt.flow.work.traces import Linked, Placed
from gpuckpt.image import wire
from gpuckpt.model import CudaState, GpuUse, ProcessRef
from gpuckpt.tools.cutting import Cut
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from gpuckpt.errors import GpuckptError

FORMAT: Final = 1
# a step is written to a file beside the entry; one this old was never finished
HALF_WRITTEN_SECONDS: Final = 60.0
NEVER_TAKEN: Final = "a step that was never written to its end"
LOCK_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: who runs it, on which processes, what it had done last.

    `first` holds the driver's state of each CUDA process before the operation, `threads` the
    driver's thread in each (one that was parked cannot be asked for it), `uses` what they held on
    each GPU, `stage` the folder that becomes the image. The processes of a restore are those it has
    made, once they are known; `pids` those it will make, or that a dump has let go; `placed` are
    files, and `cuts` those that it shortens; `space` the process 1 of a namespace for them,
    `huge_pages` what was set before; `quiesced`: some may wait.
    """

    format: int = FORMAT
    id: str
    operation: str
    started: str
    boot_id: str
    owner: ProcessRef
    image: str
    processes: tuple[ProcessRef, ...]
    first: dict[int, CudaState]
    threads: dict[int, int] = {}
    uses: tuple[GpuUse, ...] = ()
    pids: tuple[int, ...] = ()
    linked: tuple[Linked, ...] = ()
    placed: tuple[Placed, ...] = ()
    cuts: tuple[Cut, ...] = ()
    space: ProcessRef | None = None
    stage: str = ""
    quiesced: bool = False
    step: str = "opened"
    huge_pages: str = ""

    @property
    def title(self) -> str:
        """How it is spoken of: the dump of such a time."""
        return f"{noun(self.operation)} of {self.started}"


class Strange(Value, frozen=True):
    """A file of the journal that is no entry we can act on, and why."""

    path: Path
    why: str


class Journal:
    """All entries of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        """Use the journal below `state_dir`; it is made, private, with the first entry."""
        self._folder = state_dir / "journal"

    def entries(self) -> tuple[Entry, ...]:
        """Return every entry that can be acted on, oldest first."""
        return tuple(one for one in self._all() if isinstance(one, Entry))

    def strange(self) -> tuple[Strange, ...]:
        """Return what else lies there: damaged, half-written, or of a newer gpuckpt."""
        half = []
        for path in self._files("*.new"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > HALF_WRITTEN_SECONDS:
                    half.append(Strange(path, NEVER_TAKEN))
        return (*(one for one in self._all() if isinstance(one, Strange)), *half)

    def ids(self) -> frozenset[str]:
        """Return the ids of all operations that have a file here, be it one that we cannot read."""
        return frozenset(path.stem for path in self._files("*.json"))

    def _files(self, pattern: str) -> list[Path]:
        """List files by name; who may not look into the state directory sees none of them."""
        try:
            return sorted(self._folder.glob(pattern))
        except OSError:  # of a folder above; Python 3.11 hides only the folder's own
            return []

    def open(
        self,
        entry: Entry,
        alive: Callable[[ProcessRef], bool],
        above: Collection[ProcessRef] = (),
    ) -> None:
        """Write a new entry unless a living operation works on one of its processes.

        `above` are the ancestors of the tree: it may have been forked in another's since that
        was listed.

        Raises:
            ProcessUnfit: another gpuckpt is at work there.
            NotWritable: it cannot be written, or the state directory cannot be made.
        """
        self.make()
        with self.locked():
            for other in self.entries():
                shared = set(other.processes) & {*entry.processes, *above}
                same_image = entry.image and other.image == entry.image
                if (shared or same_image) and alive(other.owner):
                    raise at_work(other, min((ref.pid for ref in shared), default=None))
            self._write(entry, NotWritable)

    def step(self, entry: Entry, step: str, **known: object) -> Entry:
        """Record on disk what is about to be done, and what has become `known` since.

        Raises:
            DumpFailed, RestoreFailed: it cannot be written, so it must not be done.
        """
        entry = msgspec.structs.replace(entry, step=step, **known)
        self._write(entry, RestoreFailed if entry.operation == "restore" else DumpFailed)
        return entry

    def close(self, entry: Entry) -> None:
        """Forget an operation that left nothing to repair.

        One that cannot be forgotten, on a disk that went away or may no longer be written, is no
        failure of what is done: the next repair finds nothing left of it.
        """
        with suppress(OSError):
            for path in (self._path(entry).with_suffix(".new"), self._path(entry)):
                path.unlink(missing_ok=True)
            _sync(self._folder)

    def _all(self) -> Iterator[Entry | Strange]:
        for path in self._files("*.json"):
            try:
                yield _read(path)
            except FileNotFoundError:
                continue  # closed this very moment
            except (OSError, msgspec.MsgspecError) as why:
                yield Strange(path, f"it is damaged: {why}")

    def make(self) -> None:
        """Make the state directory; NotWritable if that fails."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # or a power loss could take the folder with all its entries
            _sync(self._folder.parent)
        except OSError as why:
            raise NotWritable(
                f"the state directory {self._folder.parent} cannot be written: {why.strerror}",
                hint="Run gpuckpt as root (sudo gpuckpt ...)."
                if os.geteuid()
                else "Name another one in GPUCKPT_STATE_DIR.",
            ) from why

    def _path(self, entry: Entry) -> Path:
        return self._folder / f"{entry.id}.json"

    def _write(self, entry: Entry, failure: type[GpuckptError]) -> None:
        path = self._path(entry)
        fresh = path.with_suffix(".new")
        try:
            _store(fresh, wire.to_json(entry))
            fresh.rename(path)
            _sync(self._folder)
        except OSError as why:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise self._unwritten(why, failure) from why

    def _unwritten(self, why: OSError, failure: type[GpuckptError]) -> GpuckptError:
        return failure(
            f"the journal in {self._folder} cannot be written: {why.strerror}",
            hint="Make room there, or name another place in GPUCKPT_STATE_DIR.",
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Two operations that start, or end, at once see each other's entries."""
        try:
            fd = os.open(self._folder / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as why:
            raise self._unwritten(why, NotWritable) from why
        try:
            _wait_for(fd)
            yield
        finally:
            os.close(fd)


def noun(operation: str) -> str:
    """Return the name of an operation as a thing: a dump, a restore, a rehearsal."""
    return "rehearsal" if operation == "rehearse" else operation


def at_work(other: Entry, pid: int | None) -> ProcessUnfit:
    """Return the refusal for who meets a living operation: on a process, or on its image."""
    what = other.image if pid is None else f"process {pid}"
    return ProcessUnfit(
        f"another gpuckpt (pid {other.owner.pid}) runs a {noun(other.operation)} on {what}",
        hint="Wait until it has ended.",
    )


class _Head(msgspec.Struct):
    format: int = FORMAT


def _read(path: Path) -> Entry | Strange:
    raw = path.read_bytes()
    if (version := msgspec.json.decode(raw, type=_Head).format) > FORMAT:
        return Strange(path, f"it is of a newer gpuckpt (format {version}), which must repair it")
    entry = wire.from_json(raw, Entry)
    if entry.id != path.stem:  # files are found, and removed, by it
        return Strange(path, f"it calls itself {entry.id}")
    return entry


def _wait_for(fd: int) -> None:
    """Lock the journal; others hold it for a moment only, unless somebody has stopped them.

    Raises:
        ProcessUnfit: another gpuckpt does not let go of it.
    """
    ends = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as why:
            if time.monotonic() >= ends:
                raise ProcessUnfit(
                    "another gpuckpt has locked the journal and does not go on",
                    hint="Look for one that is stopped (ps -C gpuckpt) and continue or end it.",
                ) from why
            time.sleep(POLL_SECONDS)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _store(path: Path, data: bytes) -> None:
    """Write a whole private file to disk: a full disk takes a part of it and says nothing."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
