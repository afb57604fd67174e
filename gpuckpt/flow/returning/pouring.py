"""The bytes of the files that an image carries, one file after the other."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gpuckpt.errors import GpuckptError
from gpuckpt.image.names import CARRIED
from gpuckpt.image.unpack import Unpacker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.image.store import Image

_PIECE: Final = 1 << 20


@contextmanager
def carried_bytes(image: Image, *, wanted: bool) -> Iterator[int]:
    """Give a descriptor from which all files' bytes come; if none are `wanted`, nothing does."""
    if not wanted:
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123
            yield nothing.fileno()
        return
    read, write = os.pipe()
    unpacker = Unpacker(image)
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


def skip(source: int, count: int) -> None:
    """Leave out the bytes of a file that is not made."""
    while count and (piece := os.read(source, min(_PIECE, count))):
        count -= len(piece)
