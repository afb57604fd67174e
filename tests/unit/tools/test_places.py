"""Where files lie, from recorded /proc text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.tools.descriptors import Descriptor, fdinfo
from gpuckpt.tools.mappings import Mapped, parse_maps
from gpuckpt.tools.places import OddFile, odd_files, parse_mounts

if TYPE_CHECKING:
    import pytest

# recorded on a cluster node, host names changed
MOUNTINFO = rb"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
24 22 0:22 / /proc rw,nosuid - proc proc rw
41 22 0:45 / /home rw,relatime shared:20 - nfs4 fs1:/export/home rw,vers=4.2,hard,sec=sys
43 22 0:47 / /data\040set rw - fuse.sshfs me@x:/d rw,user_id=0
"""
KNOWN = parse_mounts(MOUNTINFO)


def test_mountinfo() -> None:
    assert KNOWN[41].filesystem == "nfs4"
    assert KNOWN[41].remote
    assert KNOWN[43].point == "/data set"
    assert KNOWN[43].remote
    assert not KNOWN[22].remote
    assert KNOWN[22].device == os.makedev(259, 2)


def test_names_with_odd_white_space() -> None:
    """The kernel escapes blanks, tabs and line feeds alone; everything else may be in a name."""
    line = "44 22 0:48 / /mnt/a\u2028b\u00a0c\x0bd rw - tmpfs none rw\n".encode()
    known = parse_mounts(MOUNTINFO + line)
    assert known[44].point == "/mnt/a\u2028b\u00a0c\x0bd"
    assert known[22] == KNOWN[22]
    (mapped,) = parse_maps(b"7f0-7f1 r--p 00000000 08:02 99 /lib/a\rb\x85c\n")
    assert mapped.target == "/lib/a\rb\\x85c"


def recorded(folder: Path, fd: int, path: str, mount: int) -> Descriptor:
    """Record one open file under a /proc of its own."""
    process = folder / "7"
    (process / "fdinfo").mkdir(parents=True, exist_ok=True)
    (process / "fdinfo" / str(fd)).write_text(f"pos:\t0\nflags:\t0100000\nmnt_id:\t{mount}\n")
    file = folder / f"{fd}{path}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    found = file.stat()
    return Descriptor(fd, str(file), "file", found.st_ino, found.st_dev)


def test_files_of_other_machines_and_of_no_mount(tmp_path: Path) -> None:
    opened = (
        recorded(tmp_path, 3, "/work/log", 22),
        recorded(tmp_path, 4, "/home/me/data", 41),
        recorded(tmp_path, 5, "/lost", 99),
    )
    assert odd_files(tmp_path, [(7, opened, ())], KNOWN) == (
        OddFile(7, 4, f"{tmp_path}/4/home/me/data", "nfs4", "", remote=True),
        OddFile(7, 5, f"{tmp_path}/5/lost", "", "mount", remote=False),
    )


def test_a_mapped_file_that_root_may_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server that squashes root: looking is allowed, opening is not."""
    file = tmp_path / "program"
    file.write_text("x")
    (tmp_path / "7" / "map_files").mkdir(parents=True)
    (tmp_path / "7" / "map_files" / "7f00-7f01").symlink_to(file)
    area = Mapped("/home/me/program", "7f00-7f01", 9, shared=False, deleted=False)

    probe = os.open(file, os.O_PATH)
    number = int(dict(fdinfo("/proc/self", probe))["mnt_id"])
    os.close(probe)
    plain = os.open

    def refuse(path: str, flags: int) -> int:
        if flags & os.O_PATH or path.startswith("/proc/self/"):
            return plain(path, flags)
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    assert odd_files(tmp_path, [(7, (), (area,))], {number: KNOWN[41]}) == (
        OddFile(7, None, "/home/me/program", "nfs4", "denied", remote=True),
    )
    assert odd_files(tmp_path, [(7, (), (area,))], {number: KNOWN[22]}) == ()


def test_a_number_that_is_another_file_s_by_now() -> None:
    """What is closed while it is looked at stops nothing."""
    read, write = os.pipe()
    try:
        gone = Descriptor(read, "/closed/meanwhile", "file")
        assert odd_files(Path("/proc"), [(os.getpid(), [gone], [])], {}) == ()
    finally:
        os.close(read)
        os.close(write)
