"""Reading a small CRIU image back from the stage it was just stored in.

The manifest is made from what CRIU itself recorded, so a few images are needed before there is a
manifest to open the stage with.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuckpt.errors import WriteFailed
from gpuckpt.image.frames import (
    FrameDamaged,
    TableDamaged,
    decode_frame,
    decode_table,
    new_unpacker,
    table_size,
)
from gpuckpt.image.names import stored_name
from gpuckpt.image.store import read_at

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.manifest import FileEntry

# pstree.img and files.img of a tree of 200 processes with 20,000 descriptors take a few MiB
LARGEST = 256 << 20


def reread(folder: Path, entry: FileEntry) -> bytes:
    """Return the raw bytes of the image `entry` stored in `folder`, their digests checked.

    Raises:
        WriteFailed: it is too large to be held in memory, or is not what was written.
    """
    if entry.raw_size > LARGEST:
        raise WriteFailed(f"CRIU's {entry.name} has {entry.raw_size} bytes, too many to be read")
    unpacker = new_unpacker()
    parts = []
    try:
        fd = os.open(folder / stored_name(entry.name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = table_size(entry.frames, entry.table_version)
            at = entry.stored_size - size
            table = decode_table(
                read_at(fd, size, at),
                version=entry.table_version,
                frames=entry.frames,
                raw_size=entry.raw_size,
                stored_size=entry.stored_size,
            )
            for frame in table:
                stored = read_at(fd, frame.stored, frame.offset)
                parts.append(decode_frame(unpacker, frame, stored))
        finally:
            os.close(fd)
    except (OSError, TableDamaged, FrameDamaged) as why:
        raise WriteFailed(f"CRIU's {entry.name} cannot be read back: {why}") from why
    return b"".join(parts)
