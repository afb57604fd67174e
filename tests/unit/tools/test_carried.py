"""Files that are carried: what is read of them, what is made, and how much of a hole stays one."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.model import Carriage
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.imported import imported
from gpuckpt.tools.putting import User
from gpuckpt.tools.sparse import SMALLEST_HOLE, beyond
from gpuckpt.tools.taskmemory import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.model import CarriedFile

MIB = 1 << 20


@pytest.fixture
def shm() -> Iterator[Path]:
    """Give a folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gpuckpt-test-") as folder:
        yield Path(folder)


@pytest.fixture
def carried() -> Carried:
    return Carried(Path("/proc"))


@contextmanager
def stored(carried: Carried, file: CarriedFile, folder: Path) -> Iterator[tuple[CarriedFile, int]]:
    """Give a file with its digest, and its bytes open for reading."""
    with (folder / "stored").open("w+b") as bytes_:
        whole = replace(file, digest=carried.copy(file, bytes_.fileno()))
        os.lseek(bytes_.fileno(), 0, os.SEEK_SET)
        yield whole, bytes_.fileno()


def test_a_file_full_of_holes(carried: Carried, shm: Path, tmp_path: Path) -> None:
    path = shm / "sparse"
    with path.open("wb") as made:
        made.truncate(1 << 40)
        for at in (0, 4 * MIB, 4 * MIB + 8192, 900 << 30):
            os.pwrite(made.fileno(), b"x" * 100, at)
    path.chmod(0o640)
    os.utime(path, ns=(5, 7_000_000_001))
    (file,) = carried.examine({str(path): True}, ())
    assert (file.size, file.mode, file.mtime_ns) == (1 << 40, 0o640, 7_000_000_001)
    assert (file.names, file.link, file.memory) == ((str(path),), "", True)
    # two pages with a small hole between them are one extent
    assert [offset for offset, _ in file.extents] == [0, 4 * MIB, 900 << 30]
    assert file.bytes < SMALLEST_HOLE
    with stored(carried, file, tmp_path) as (whole, source):
        assert carried.matches(str(path), whole)
        fd = carried.make(whole, source, "spare")
        assert not any(one.name != "sparse" for one in shm.iterdir())
        carried.name(fd, str(shm / "again"))
        with pytest.raises(FileExistsError):
            carried.name(fd, str(path))
        os.close(fd)
    assert carried.matches(str(shm / "again"), whole)
    again = (shm / "again").stat()
    assert (again.st_mode & 0o7777, again.st_mtime_ns) == (0o640, 7_000_000_001)
    assert again.st_blocks * 512 < MIB
    # a byte where the hole is, a byte that changed, a byte less
    for change in ((2 * MIB, b"y"), (4 * MIB, b"y")):
        with path.open("r+b") as other:
            kept = os.pread(other.fileno(), 1, change[0])
            os.pwrite(other.fileno(), change[1], change[0])
            assert not carried.matches(str(path), whole)
            os.pwrite(other.fileno(), kept, change[0])
    assert carried.matches(str(path), whole)
    os.truncate(path, (1 << 40) - 1)
    assert not carried.matches(str(path), whole)
    assert not carried.matches(str(shm / "nowhere"), whole)


def test_all_names_of_a_file(carried: Carried, shm: Path) -> None:
    (shm / "sem.a").write_bytes(b"bytes")
    os.link(shm / "sem.a", shm / "link_remap.7")
    os.link(shm / "sem.a", shm / "sem.b")
    link, name = str(shm / "link_remap.7"), str(shm / "sem.b")
    (shm / "link").symlink_to(shm / "sem.a")
    (file,) = carried.examine({name: False, str(shm / "gone"): True}, [link])
    assert (file.names, file.link) == ((str(shm / "sem.a"), name), link)
    assert file.exact
    with pytest.raises(OSError, match="link"):
        carried.examine({str(shm / "link"): True}, ())
    with pytest.raises(FileNotFoundError):
        carried.examine({}, [str(shm / "link_remap.8")])
    # what a name means may change while nobody looks
    (shm / "sem.c").write_bytes(b"other")
    (shm / "sem.c").rename(link)
    with pytest.raises(OSError, match="another file"):
        carried.copy(file, 1)


def test_what_a_process_holds(carried: Carried, shm: Path, tmp_path: Path) -> None:
    paths = [shm / name for name in ("mapped", "open", "private", "gone")]
    log, given = tmp_path / "log", tmp_path / "input"
    for path in (*paths, log, given):
        path.write_bytes(b"x" * 4096)
    os.link(log, tmp_path / "other name")
    with paths[0].open("r+b") as shared, paths[2].open("rb") as private:
        area = mmap.mmap(shared.fileno(), 4096)
        other = mmap.mmap(private.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    with given.open("r+b") as file:  # what may be written to may be written to later
        ready = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    seen = paths[2].stat()
    with closing(area), closing(other), closing(ready), paths[1].open() as opened, paths[3].open():
        paths[3].unlink()
        with log.open("ab"), (tmp_path / "other name").open(), Path("/proc/self/status").open():
            found = {one.path: one for one in carried.used([os.getpid()])}
        assert "/proc/self/status" not in {path.replace(str(os.getpid()), "self") for path in found}
        inodes = {(seen.st_dev, seen.st_ino), (os.fstat(opened.fileno()).st_dev, 0)}
        assert carried.users(inodes) == {
            (seen.st_dev, seen.st_ino): User(os.getpid(), writes=False)
        }
    assert str(paths[3]) not in found
    used = [found[str(path)] for path in (*paths[:3], log, given)]
    assert [one.memory for one in used] == [True, True, True, False, False]
    assert [one.shared for one in used] == [True, False, False, False, True]
    assert [one.written for one in used] == [True, False, False, True, True]
    assert [(one.size, one.names[0]) for one in used] == [
        (4096, str(path)) for path in (*paths[:3], log, given)
    ]
    assert used[3].names == (str(log), str(tmp_path / "other name"))
    assert carried.is_program(sys.executable)
    assert not carried.is_program(str(log))


def test_a_mapped_file_whose_name_holds_the_end_of_a_line(carried: Carried, tmp_path: Path) -> None:
    """The table of what is mapped tells it as it is, and only a newline by its number."""
    path = tmp_path / "a\rname\nfor\x0bfiles"
    path.write_bytes(b"x" * 4096)
    seen = path.stat()
    with path.open("rb") as file:
        area = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    with closing(area):
        assert carried.users({(seen.st_dev, seen.st_ino)}) == {
            (seen.st_dev, seen.st_ino): User(os.getpid(), writes=False)
        }
        assert imported(Path("/proc"), os.getpid(), most=1).bytes == 0
        maps = parse(Path("/proc/self/maps").read_bytes())
        assert [one.name for one in maps if "\rname" in one.name] == [
            str(path).replace("\n", "\\012")
        ]


def test_what_a_folder_holds(carried: Carried, tmp_path: Path) -> None:
    for name in ("a/b/file", "a/c/left out", "a/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"bytes")
    (tmp_path / "a/link").symlink_to("z")
    os.mkfifo(tmp_path / "a/fifo")
    (tmp_path / "way").symlink_to("a")
    found = carried.listed(str(tmp_path / "way"), 9, [str(tmp_path / "a/c")])
    names = [str(tmp_path / name) for name in ("a/b/file", "a/z")]
    assert [one.path for one in found.files] == [name for (name,) in (x.names for x in found.files)]
    assert ([one.path for one in found.files], found.others, found.whole) == (names, 2, True)
    assert not carried.listed(str(tmp_path), 1).whole
    assert carried.listed(names[1], 1).files[0].bytes == 5
    with pytest.raises(FileNotFoundError):
        carried.listed(str(tmp_path / "nowhere"), 1)


def test_work_is_known_by_the_names_it_is_used_by(carried: Carried, tmp_path: Path) -> None:
    for name in ("log", "shared"):
        (tmp_path / name).write_bytes(b"bytes")
    os.link(tmp_path / "log", tmp_path / "nobody's")
    os.link(tmp_path / "log", tmp_path / "second")
    log, second, shared = (str(tmp_path / name) for name in ("log", "second", "shared"))
    work = {log: Carriage.WRITTEN, second: Carriage.INCLUDED}
    found = carried.examine({shared: True}, (), (), work)
    assert [one.names for one in found] == [(shared,), (log, second)]
    assert [one.why for one in found] == [Carriage.NEEDED, Carriage.WRITTEN]
    assert [one.exact for one in found] == [True, False]
    assert carried.readable(log) == ""
    assert carried.readable(str(tmp_path / "gone")) == "No such file or directory"


def test_what_lies_beyond() -> None:
    known = ((0, 10), (20, 10))
    assert list(beyond(((0, 40),), known)) == [(10, 10), (30, 10)]
    assert list(beyond(((5, 5), (22, 3)), known)) == []
    assert list(beyond(((8, 4),), ())) == [(8, 4)]


class Asked(int):
    """The beginning of an extent, which counts how often it is looked at."""

    times = 0

    def __add__(self, other: int) -> int:
        """Add, and count that."""
        Asked.times += 1
        return int(self) + other

    __radd__ = __add__


def test_many_extents_are_gone_through_once() -> None:
    """Sparse databases and disks of virtual machines have a hundred thousand of them."""
    known = [(Asked(number * 10), 5) for number in range(1000)]
    here = [(number * 10 + 4, 3) for number in range(1000)]
    assert list(beyond(here, known)) == [(number * 10 + 5, 2) for number in range(1000)]
    assert Asked.times < 4 * len(known)
