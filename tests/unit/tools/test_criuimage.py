"""CRIU's own images are read as CRIU meant them; others end in one plain error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuckpt.errors import ImageDamaged
from gpuckpt.tools.criuimage import (
    TaskIds,
    ids,
    read_files,
    read_pstree,
    relocated,
    rename_sockets,
)
from gpuckpt.tools.openfiles import Connection, FileRef, Listener, Remap
from gpuckpt.tools.unixnames import SocketName

REAL = Path(__file__).parent / "data" / "criu-4.2.1"


def real(name: str) -> bytes:
    return (REAL / name).read_bytes()


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def image(magic: int, *entries: bytes) -> bytes:
    framed = b"".join(len(one).to_bytes(4, "little") + one for one in entries)
    return b"\x19\x43\x56\x54" + magic.to_bytes(4, "little") + framed


PAGEMAP, PSTREE, FILES, REMAPS = 0x56084025, 0x50273030, 0x56303138, 0x59133954


def test_pids_threads_groups_and_sessions() -> None:
    tasks = read_pstree(real("pstree.img"))
    assert tasks == (
        TaskIds(26023, 0, 26023, 26023, (26023, 26025)),
        TaskIds(26026, 26023, 26026, 26026, (26026,)),
    )
    assert ids(tasks) == (26023, 26025, 26026)


def test_numbers_of_leaders_that_are_gone_must_be_free_too() -> None:
    tasks = (TaskIds(10, 0, 10, 10, (10, 11)), TaskIds(12, 10, 13, 14, (12,)))
    assert ids(tasks) == (10, 11, 12, 13, 14)


def test_the_thread_of_a_zombie_is_the_zombie_itself() -> None:
    """CRIU 4.2.1 leaves its number unset; a living process's threads begin with its own pid."""
    zombie = b"".join(field(*pair) for pair in ((1, 8), (2, 7), (3, 7), (4, 7), (5, 1830896896)))
    assert read_pstree(image(PSTREE, zombie)) == (TaskIds(8, 7, 7, 7, (8,)),)


def test_a_shell_s_session_is_not_the_job_s() -> None:
    tasks = (
        TaskIds(10, 0, 9, 8, (10,)),
        TaskIds(12, 10, 9, 8, (12,)),
        TaskIds(15, 10, 0, 8, (15,)),
    )
    assert ids(tasks) == (10, 12, 15)
    assert ids(()) == ()


def test_files_outside_the_image() -> None:
    found = read_files(real("files.img"), real("remap-fpath.img"))
    files = {one.path: one for one in found.files}
    python = files["/usr/bin/python3.11"]
    assert (python.size, python.mode) == (6831736, 0o100755)
    assert python.build_id == "571d98e01096d5c1c32420d229a6731a0a50d2a0"
    assert files["/dev/null"] == FileRef("/dev/null", None, 0o20666, "", 0o100000)
    assert files["/tmp/job/out.txt"].size == 135
    # opened for append, which CRIU does not check, and for reading, which it does
    assert files["/tmp/job/app.log"].size == 0
    # /proc and ptys are CRIU's, deleted files stand by themselves
    assert "/tmp/job/link_remap.29" not in files
    assert Remap("/tmp/job/linked", "/tmp/job/link_remap.29", linked=True) in found.remaps
    assert any(one.path == "/tmp/job/ghost" and not one.linked for one in found.remaps)
    assert not {"/tmp/job/ghost", "/tmp/job/linked", "/dev/ptmx", "/dev/pts/0"} & set(files)
    assert not [path for path in files if path.startswith("/proc")]
    assert found.terminals == ("/dev/ptmx", "/dev/pts/0")


def test_sockets_that_will_be_bound_again() -> None:
    assert read_files(real("files.img")).listeners == (
        Listener("tcp", "127.0.0.1", 41701),
        Listener("tcp", "::1", 37927),
        Listener("tcp", "::", 55949, dual=True),
        Listener("udp", "0.0.0.0", 40746),  # noqa: S104 - that is what was dumped
        Listener("udp", "::1", 33621),
    )


def test_paths_are_absolute_whether_or_not_criu_wrote_the_slash() -> None:
    entry = field(1, 1) + field(2, 5) + field(3, field(1, 5) + field(6, b"data/x"))
    assert read_files(image(FILES, entry)).files[0].path == "/data/x"


def test_a_path_that_is_no_utf8_leads_back_to_its_file() -> None:
    entry = field(1, 1) + field(2, 5) + field(3, field(1, 5) + field(6, b"/data/\xe9\xff"))
    path = read_files(image(FILES, entry)).files[0].path
    assert os.fsencode(path) == b"/data/\xe9\xff"


def test_a_connected_socket_is_no_listener() -> None:
    ends = ((7, 80), (8, 5000), (11, 0x0100007F), (12, 0x0200007F))
    inet = b"".join(field(*pair) for pair in ((3, 2), (5, 6), (6, 1), *ends))
    found = read_files(image(FILES, field(1, 4) + field(2, 1) + field(4, inet)))
    assert found.listeners == ()
    assert found.connections == (Connection("127.0.0.1", 80, "127.0.0.2", 5000),)


def test_an_address_of_the_wrong_length_is_damage() -> None:
    inet = b"".join(field(*pair) for pair in ((3, 10), (5, 6), (6, 10), (7, 80), (11, 1)))
    with pytest.raises(ImageDamaged, match="wrong length"):
        read_files(image(FILES, field(1, 4) + field(4, inet)))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x19\x43\x56",
        image(PAGEMAP),
        image(PSTREE, b"\x08"),
        image(PSTREE, b"\x0b"),
        image(PSTREE, field(1, b"text")),
        image(PSTREE, b"\x08" + b"\xff" * 11),
        image(PSTREE, b"\x0a\xff\xff\xff\xff\x0f"),
        image(PSTREE)[:8] + b"\xff\xff\xff\xff",
        image(PSTREE, field(1, 1))[:-1],
        image(PSTREE) + b"\0",
    ],
)
def test_damage_is_one_plain_error(raw: bytes) -> None:
    with pytest.raises(ImageDamaged):
        read_pstree(raw)


def test_packed_and_fixed_fields_are_understood() -> None:
    packed = field(1, 10) + field(5, varint(10) + varint(300)) + b"\x35" + bytes(4)
    assert read_pstree(image(PSTREE, packed + b"\x39" + bytes(8)))[0].threads == (10, 300)


def unix(number: int, kind: int, state: int, name: bytes, flags: int = 0) -> bytes:
    inner = field(1, number) + field(3, kind) + field(4, state) + field(11, name) + field(6, flags)
    return field(1, 3) + field(2, number) + field(16, inner)


UNIX = (
    unix(1, 5, 10, b"\0padded\0\0"),
    unix(2, 1, 10, b"\0service"),
    unix(3, 1, 1, b"\0service"),
    unix(4, 1, 10, b"/run/path\0"),
    unix(5, 2, 7, b""),
    unix(6, 2, 7, b"/dev/log\0", 1),
    unix(7, 2, 7, b"\0server", 1),
)


def test_names_that_are_no_paths_and_are_bound_again() -> None:
    found = read_files(image(FILES, *UNIX))
    assert found.names == (
        SocketName(b"\0padded\0\0", "seqpacket"),
        SocketName(b"\0service", "stream"),
    )
    assert found.sockets == ("/run/path",)
    assert read_files(image(FILES, unix(3, 1, 1, b"\0service"))).names == ()


def test_sockets_get_other_names_of_the_same_length_and_nothing_moves() -> None:
    """A name that is also elsewhere in the image, in another field, stays there."""
    other = field(1, 1) + field(2, 9) + field(3, field(6, b"\0service"))
    names = {b"\0service": b"\0SERVICE", b"\0padded\0\0": b"\0longer-than-before"}
    new = rename_sockets(image(FILES, other, *UNIX), lambda name: names.get(name, name))
    later = (unix(2, 1, 10, b"\0SERVICE"), unix(3, 1, 1, b"\0SERVICE"))
    assert new == image(FILES, other, UNIX[0], *later, *UNIX[3:])
    for raw in (b"", new[:-3], image(PSTREE)):
        with pytest.raises(ImageDamaged):
            rename_sockets(raw, lambda name: name)


def test_files_and_sockets_lie_elsewhere_and_all_else_stays() -> None:
    """Names get longer and shorter; what only looks like a path, in another field, is none."""

    def files(folder: bytes) -> bytes:
        regular = field(1, 4) + field(2, 0) + field(5, b"") + field(6, folder + b"/log\xff")
        kept = field(1, 1) + field(2, 9) + field(3, regular + field(8, 300)) + field(99, b"/old/x")
        return image(FILES, kept, unix(4, 1, 10, folder + b"/socket\0"), *UNIX)

    for new in (b"/", b"/new/and/longer" * 20):
        here = os.fsdecode(new)
        moved = relocated(files(b"/old"), lambda path, here=here: path.replace("/old", here))  # type: ignore[misc]
        assert moved == files(new)
        assert len(read_files(moved).files) == len(read_files(files(b"/old")).files)
    whole = real("files.img")
    assert relocated(whole, lambda path: path) == whole
    for raw in (b"", whole[:-3], image(PSTREE)):
        with pytest.raises(ImageDamaged):
            relocated(raw, lambda path: path)
