"""Pipes with a writer or a reader at the other end, as CRIU is for a packer or an unpacker."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuckpt.image.pack import Packer
from gpuckpt.image.sink import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuckpt.image.manifest import FileEntry
    from gpuckpt.image.unpack import Unpacker

PATIENCE = 60  # seconds: only a deadlock takes that long


@contextmanager
def threads(count: int = 64) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def feed(fd: int, data: bytes, chunk: int = 1 << 20) -> None:
    """Write everything and close, as CRIU does with an image."""
    with open(fd, "wb", buffering=0) as pipe:
        view = memoryview(data)
        while view:
            view = view[pipe.write(view[:chunk]) :]


def drain(fd: int, chunk: int = 1 << 20) -> bytes:
    """Read to the end and close."""
    with open(fd, "rb", buffering=0) as pipe:
        parts = []
        while part := pipe.read(chunk):
            parts.append(part)
    return b"".join(parts)


def store(packer: Packer, name: str, fd: int) -> None:
    """Store one stream and close it, as the streamer does."""
    try:
        packer.store(name, fd)
    finally:
        os.close(fd)


def start_store(pool: ThreadPoolExecutor, packer: Packer, name: str) -> tuple[int, Future[None]]:
    """Return the end to write into, and what `store` will come to."""
    reader, writer = os.pipe()
    return writer, pool.submit(store, packer, name, reader)


def pack(folder: Path, files: dict[str, bytes], chunk: int = 1 << 20, **options: Any) -> Any:
    """Pack these images side by side and return their entries."""
    packer = Packer(Folder(folder), **options)
    with threads() as pool:
        for name, data in files.items():
            writer, stored = start_store(pool, packer, name)
            pool.submit(feed, writer, data, chunk)
            stored.result(PATIENCE)
    entries: tuple[FileEntry, ...] = packer.finish()
    return entries


def eventually(true: Callable[[], bool]) -> None:
    """Wait until `true()`, and fail if it never is."""
    import time  # noqa: PLC0415

    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def send(unpacker: Unpacker, name: str, fd: int) -> None:
    """Feed one stream and close it, as the streamer does."""
    try:
        unpacker.send(name, fd)
    finally:
        os.close(fd)


def start_send(pool: ThreadPoolExecutor, unpacker: Unpacker, name: str) -> tuple[int, Future[None]]:
    """Return the end to read from, and what `send` will come to."""
    reader, writer = os.pipe()
    return reader, pool.submit(send, unpacker, name, writer)
