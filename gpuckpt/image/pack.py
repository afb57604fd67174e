"""Storing CRIU's streams: read, hash, compress, write, all at once and in bounded memory.

Each stream is read by the thread that calls `store`. Full frames go to a crew that hashes and
compresses them, and from there in order to a few threads that write. Synced is at the end.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from gpuckpt.errors import GpuckptError, ImageDamaged, WriteFailed
from gpuckpt.image import names
from gpuckpt.image.buffers import Buffer, Buffers, room_for
from gpuckpt.image.codec import Codec
from gpuckpt.image.crew import Crew, cores
from gpuckpt.image.frames import FRAME_SIZE, largest_stored
from gpuckpt.image.intake import Intake
from gpuckpt.image.memory import Stopped, keep_freed_memory
from gpuckpt.image.pace import USUAL, Pace
from gpuckpt.image.packing import Owner, Packed, PackedFile, kept_in
from gpuckpt.image.reserve import reserve
from gpuckpt.image.syncing import Syncs
from gpuckpt.image.traffic import At, PackWaits, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.shelf import Shelf, Sink

# Buffers of all kinds; each core has a frame in hand. Of frames, 2 and 8 MiB took the processor
# time that 4 take (0.97 s for 1 GiB as it is, two cores); of pipes, 256 KiB that of a MiB.
MEMORY = (144 << 20) + cores() * (8 << 20)
# cores that CRIU and the thread that reads it have to themselves
_READING = 2


class Packer:
    """Stores streams on one shelf. Every method may be called from any thread."""

    def __init__(
        self,
        shelf: Shelf,
        level: int | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
        workers: int | None = None,
        memory: int = MEMORY,
        *,
        keep: Callable[[str], bool] = lambda _: False,
        spool: int = 0,
        read_first: bool = False,
    ) -> None:
        """Take over `shelf`; `on_bytes` is told of raw bytes as they come in, from any thread.

        `level` is zstd's, 0 stores without compressing, None lets each frame have the level that
        keeps nobody waiting. `memory` bounds all buffers together; beyond it up to `spool` bytes
        hold what has come and waits to be packed; with `read_first` all of it is to wait, and two
        cores are left to those who read until `received` has returned.
        The raw bytes of small images that `keep` knows by name are to be had from `kept` as well.

        Raises:
            UsageError: there is no such level.
        """
        keep_freed_memory()
        self._shelf = shelf
        self._codec = Codec(level)
        self._on_bytes = on_bytes
        self.on_packed: Callable[[int], None] = lambda _: None  # of raw bytes, as `on_bytes`
        self._pace = Pace(far=shelf.aside) if level is None else None
        self._usual = USUAL if level is None else None
        each = self._codec.memory + largest_stored(FRAME_SIZE)
        crew = min(workers or cores(), max(1, memory // 2 // each))
        room = memory - crew * each - shelf.memory
        self._buffers = Buffers(max(2 * room_for(FRAME_SIZE), room) + spool)
        self._spool = spool
        self._packers = Crew("pack", crew)
        if read_first:
            self._packers.hold(cores() - _READING)
            self._buffers.short = self._packers.release
        self._writers = Crew("write", shelf.writers)
        self._traffic = Traffic(crew)
        told = self._create, self._buffers.give, self._complete, self._failed
        self._owner = Owner(*told, self._writers, self._traffic, aside=spool > 0 or shelf.aside)
        self._changed = threading.Condition()
        self._creating = threading.Lock()  # a disk that hangs then must keep nobody from reading
        self._files: dict[str, PackedFile] = {}
        self._keep, self._kept = keep, dict[str, bytearray]()
        self._syncs = Syncs(self._changed, self._failed)
        self._reading = self._written = 0
        self._waits: PackWaits | None = None
        self._error: GpuckptError | None = None
        self._closing = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def store(self, name: str, fd: int) -> None:
        """Read `fd` to its end and store it as CRIU's image `name`; `fd` stays open.

        Call it in a thread of its own for every stream.

        Raises:
            ImageDamaged: the name is hostile, or was stored before.
            WriteFailed: it could not be read or written, here or elsewhere, or was aborted.
        """
        with self._changed:
            self._raise_failure()
            if self._closing:
                raise WriteFailed(f"{name} came after the image was finished")
            self._reading += 1
        try:
            file = self._begin(name)
            kept = self._kept.setdefault(name, bytearray()) if self._keep(name) else None
            number = 0
            for raw, buffer in Intake(fd, self._stop, self._buffers, self._traffic).pieces():
                self._on_bytes(len(raw))
                if kept is not None:
                    kept += raw
                if buffer:
                    self._traffic.move(None, At.TO_PACK)
                    self._packers.do(partial(self._pack, file, number, raw, buffer))
                else:
                    file.put(number, Packed(self._codec.frame(raw, self._usual), len(raw), None))
                number += 1
            file.end(number)
        except Stopped:
            self._raise_failure()
        except GpuckptError as why:
            self._fail(why)
            raise
        except OSError as why:
            error = WriteFailed(f"CRIU's {name} could not be read: {why.strerror}")
            self._fail(error)
            raise error from why
        except Exception as why:  # noqa: BLE001 - `on_bytes`, which is not ours
            self._failed(why)
            self._raise_failure()
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    def warm(self, on_bytes: Callable[[int], None]) -> None:
        """Make the buffers of the spool, and touch them; `abort` ends that."""

        def ready(buffers: list[Buffer]) -> bool:
            on_bytes(sum(buffer.size for buffer in buffers))
            return self._buffers.add(buffers)

        reserve(self._spool, ready)

    def received(self, *, last: bool = True) -> None:
        """Wait until every stream was read to its end: all its bytes are ours, if not yet stored.

        Unless it was the `last`, packers go on leaving cores to those who read.

        Raises:
            WriteFailed: one could not be read or written, or `abort` was called.
        """
        with self._changed:
            while not self._error and self._reading:
                self._changed.wait()
            self._raise_failure()
        if not last:
            return
        self._packers.release()
        if self._spool:
            self._buffers.shed()

    def finish(self) -> tuple[FileEntry, ...]:
        """Wait for every stream and return their entries, all files and the folder synced.

        Raises:
            WriteFailed: a file could not be written, or `abort` was called.
        """
        with self._changed:
            while not self._error and (self._reading or self._written < len(self._files)):
                self._changed.wait()
            waits = self._traffic.waits()
            started = time.monotonic()
            self._syncs.begin()
            while not self._error and self._syncs.left:
                self._changed.wait()
            self._raise_failure()
        try:
            self._shelf.sync()
        except Exception as why:  # noqa: BLE001 - raised again below
            self._failed(why)
        with self._changed:  # from here on `abort` comes too late
            self._raise_failure()
            self._closing = True
            self._waits = structs.replace(waits, sync=time.monotonic() - started)
        self._release()
        return tuple(file.entry for file in self._files.values())

    @property
    def kept(self) -> dict[str, bytes]:
        """The raw bytes of those images that were to be kept and came, once they were read."""
        with self._changed:
            return {name: bytes(raw) for name, raw in self._kept.items()}

    def waits(self) -> PackWaits:
        """Return who waited for whom, so far or, after `finish`, in all."""
        with self._changed:
            return self._waits or self._traffic.waits()

    def abort(self) -> None:
        """Stop everything soon: all `store` and `finish` calls raise; nothing is made any more."""
        self._fail(WriteFailed("writing the image was stopped"))
        with self._creating:  # what is being made is there now
            pass

    def _begin(self, name: str) -> PackedFile:
        names.check_name(name)
        with self._changed:
            if not self._spool:
                self._syncs.wait(lambda: self._error is not None)
            if name in self._files:
                raise ImageDamaged(f"CRIU sent {name} twice")
            file = self._files[name] = PackedFile(name, self._owner)
        return file

    def _create(self, name: str, big: bool) -> Sink:
        """Make a stored file; after `abort` has returned none is made any more."""
        with self._creating:
            with self._changed:
                if self._spool:
                    self._syncs.wait(lambda: self._error is not None)
                if self._error:
                    raise Stopped
            return self._shelf.create(name, big=big)

    def _complete(self, file: PackedFile) -> None:
        with self._changed:
            self._written += 1
            self._syncs.add(file)
            self._changed.notify_all()

    def _failed(self, why: Exception) -> None:
        """End everything."""
        if isinstance(why, Stopped):
            return
        self._fail(self._shelf.error(why))

    def _pack(self, file: PackedFile, number: int, raw: memoryview, buffer: Buffer) -> None:
        if self._error:
            return
        try:
            self._traffic.move(At.TO_PACK, At.PACKING)
            started, used = time.perf_counter(), time.thread_time()
            coded = self._codec.frame(raw, self._level())
            self._traffic.worked(time.perf_counter() - started, time.thread_time() - used)
            coded = kept_in(buffer, coded)
            self._traffic.move(At.PACKING, At.IN_LINE)
            self.on_packed(len(raw))
            file.put(number, Packed(coded, len(raw), buffer))
        except Exception as why:  # noqa: BLE001 - a crew that dies would leave finish() waiting
            self._failed(why)

    def _level(self) -> int | None:
        if self._pace is None:
            return None
        pressed = self._reading > 0 and self._buffers.few
        return self._pace.level(self._traffic.load(pressed=pressed))

    def _raise_failure(self) -> None:
        if self._error:
            raise type(self._error)(self._error.message, hint=self._error.hint)

    def _fail(self, error: GpuckptError) -> None:
        with self._changed:
            if self._error or self._closing:
                return
            self._error = error
            self._closing = True
            self._changed.notify_all()
        self._buffers.stop()
        self._shelf.stop()
        os.eventfd_write(self._stop, 1)
        # Not waited for: a disk that hangs must not keep the job from being put back.
        threading.Thread(target=self._release, name="pack-release", daemon=True).start()

    def _release(self) -> None:
        with self._changed:
            while self._reading:
                self._changed.wait()
        for crew in (self._packers, self._writers, self._syncs):
            crew.dismiss()
        for file in self._files.values():
            file.close()
        self._buffers.stop()
        os.close(self._stop)
        self._shelf.close()
