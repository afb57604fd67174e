"""CRIU's own figures: read where they can be, and never a reason to fail."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from gpuckpt.timing import Foreign
from gpuckpt.tools import criustats

if TYPE_CHECKING:
    from pathlib import Path

# as CRIU 4.2.1 has written them
DUMPED = bytes.fromhex(
    "4059105506330957220000000a2008f40410a52e18e603208001283a3000381f4000480050065806600068007000"
)


def test_what_criu_has_written_is_read(tmp_path: Path) -> None:
    (tmp_path / criustats.DUMP).write_bytes(DUMPED)
    times = {"freezing": 0.000628, "frozen": 0.005925, "memdump": 0.000486, "memwrite": 0.000128}
    counts = {"pages_scanned": 58, "pages_written": 31}
    found = criustats.read(tmp_path, criustats.DUMP)
    assert found == (Foreign("criu", "gettimeofday", times, counts),)


def test_a_restore_has_figures_of_its_own(tmp_path: Path) -> None:
    body = bytes([0x12, 7, 0x18, 9, 0x20, 0xC0, 0x84, 0x3D, 0x28, 4])[:-1]
    body = bytes([0x12, 8, 0x18, 9, 0x20, 0xC0, 0x84, 0x3D, 0x28, 4])
    head = struct.pack("<III", 0x55105940, 0x57093306, len(body))
    (tmp_path / criustats.RESTORE).write_bytes(head + body)
    (found,) = criustats.read(tmp_path, criustats.RESTORE)
    assert found.seconds == {"forking": 9e-6, "restore": 1.0}
    assert found.counts == {"pages_restored": 4}


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert criustats.read(tmp_path, criustats.DUMP) == ()
    for raw in (b"", b"\0" * 40, DUMPED[:-5], DUMPED.replace(b"@Y", b"XX"), DUMPED[:12]):
        (tmp_path / criustats.DUMP).write_bytes(raw)
        assert criustats.read(tmp_path, criustats.DUMP) == ()
    (tmp_path / criustats.RESTORE).write_bytes(DUMPED)  # of a dump
    assert criustats.read(tmp_path, criustats.RESTORE) == ()
