"""Looking at every byte: all damage in one pass, and what a verification says of it."""

from __future__ import annotations

import os
import random
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import ImageUntrusted, Interrupted, NotAnImage, StoreFailed
from gpuckpt.events import Silent
from gpuckpt.flow.verify import verify
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.image.check import check_files
from gpuckpt.image.distant import DistantOrigin
from gpuckpt.image.reading import StoredFile
from gpuckpt.image.stage import Stage
from gpuckpt.image.store import Image
from tests import image_samples as samples
from tests.image_streams import pack

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.damage import Damage

KIB, MIB = 1 << 10, 1 << 20
FILES = {
    "pages-1.img": random.Random(1).randbytes(9 * MIB),
    "core-1.img": b"core" * 1000,
    "empty.img": b"",
}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return samples.write_image(tmp_path / "job", FILES)


def check(image: Path) -> tuple[Damage, ...]:
    with Image.open(image) as opened:
        return check_files(opened)


def flip(place: Path, offset: int) -> None:
    data = bytearray(place.read_bytes())
    data[offset] ^= 0x10
    place.write_bytes(data)


def test_an_intact_image_has_no_damage_and_every_byte_was_read(image: Path) -> None:
    told: list[int] = []
    with Image.open(image) as opened:
        assert check_files(opened, told.append) == ()
        assert sum(told) == opened.manifest.totals.stored
    assert not [thread for thread in threading.enumerate() if thread.name == "check"]


def test_little_memory_is_enough(image: Path) -> None:
    with Image.open(image) as opened:
        assert check_files(opened, memory=1, workers=4) == ()


def test_a_store_that_is_gone_is_asked_for_no_more(tmp_path: Path) -> None:
    """Each question costs minutes, and an image may have thousands."""
    image = samples.write_image(tmp_path / "small", FILES, frame=64 * KIB)
    asked: list[str] = []
    there = {
        str(path.relative_to(image)): path.read_bytes()
        for path in image.rglob("*")
        if path.is_file()
    }

    class Folder:
        def names(self) -> dict[str, int]:
            return {name: len(data) for name, data in there.items()}

        def read(self, name: str, start: int, length: int) -> bytes:
            if length < 64 * KIB or start == 0 or start + length == len(there[name]):
                return there[name][start : start + length]
            asked.append(name)
            raise StoreFailed("gone")

        def close(self) -> None:
            pass

    origin = DistantOrigin(Folder(), image, 64 * KIB)
    with Image.on(origin, image) as opened, pytest.raises(StoreFailed, match="gone"):
        check_files(opened, workers=1)
    assert 0 < len(asked) < 70, "of 144"


def test_all_damage_is_found_at_once_and_named(image: Path) -> None:
    criu = image / "criu"
    flip(criu / "pages-1.img.zst", 5 * MIB)
    flip(criu / "pages-1.img.zst", 8 * MIB + 512 * KIB)
    flip(criu / "core-1.img.zst", (criu / "core-1.img.zst").stat().st_size - 1)
    (criu / "empty.img.zst").unlink()
    (criu / "extra.img.zst").write_bytes(b"")
    (image / "note\x1b[2J").mkdir()
    found = check(image)
    assert [(damage.file, damage.frame) for damage in found] == [
        ("criu/pages-1.img.zst", 1),
        ("criu/pages-1.img.zst", 2),
        ("criu/core-1.img.zst", None),
        ("criu/empty.img.zst", None),
        ("note\x1b[2J", None),
        ("criu/extra.img.zst", None),
    ]
    text = "\n".join(map(str, found))
    assert "pages-1.img.zst, frame 1 at byte 419" in text
    assert "core-1.img.zst: its frame table is not the one written" in text
    assert "empty.img.zst: it is missing" in text
    assert "does not belong to the image" in text
    assert "\x1b" not in text
    assert all(damage.finding().blocks for damage in found)


def test_a_byte_that_changes_nothing_of_what_is_unpacked_is_found_too(image: Path) -> None:
    """Zstd ignores one bit of a frame's head; the check of the stored bytes does not."""
    flip(image / "criu" / "core-1.img.zst", 4)
    (damage,) = check(image)
    assert "stored bytes" in damage.reason
    assert damage.frame == 0


@pytest.mark.parametrize("offset", [4, 8, 9, 9 + 3 + 128 * KIB, 9 + 3, 4 * MIB])
def test_a_changed_byte_of_a_frame_that_is_stored_as_it_is(tmp_path: Path, offset: int) -> None:
    """Be it of the raw bytes, or of what zstd needs around them; and in a run of one byte."""
    files = {"pages-1.img": FILES["pages-1.img"], "zeros.img": bytes(5 * MIB)}
    stage = Stage.create(tmp_path / "job")
    entries = pack(stage.criu, files, level=0)
    stage.commit(samples.manifest(files=entries))
    stage.close()
    assert check(tmp_path / "job") == ()
    flip(tmp_path / "job" / "criu" / "pages-1.img.zst", offset)
    flip(tmp_path / "job" / "criu" / "zeros.img.zst", min(offset, 100))
    first, second = check(tmp_path / "job")
    assert (first.file, first.frame) == ("criu/pages-1.img.zst", 0)
    assert (second.file, second.frame) == ("criu/zeros.img.zst", 0)


def test_files_are_closed_whatever_happens(image: Path) -> None:
    def broken(_: int) -> None:
        raise RuntimeError("no terminal")

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with Image.open(image) as opened:
        with pytest.raises(RuntimeError, match="no terminal"):
            check_files(opened, broken)
        check_files(opened)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_could_not_be_looked_at_is_not_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more frames than threads and buffers: nobody may end, or keep one, over it."""

    def no_memory(*_: object) -> None:
        raise MemoryError("no memory to unpack into")

    image = samples.write_image(tmp_path / "large", {"pages-1.img": bytes(40 * MIB)})
    monkeypatch.setattr(StoredFile, "prove", no_memory)
    with Image.open(image) as opened, pytest.raises(MemoryError, match="to unpack into"):
        check_files(opened, workers=2, memory=0)


def test_logs_may_be_anything_and_a_crash_may_leave_the_owner(image: Path) -> None:
    (image / "logs" / "criu.log").write_text("x")
    (image / "owner").write_text("x")
    assert check(image) == ()


def test_a_flood_of_strange_files_is_cut_off(image: Path) -> None:
    for number in range(1500):
        (image / "criu" / f"{number}").touch()
    assert len(check(image)) == 1000


def test_a_verification_tells_what_it_read(image: Path) -> None:
    result = verify(image, Silent())
    assert not result.damage
    assert result.files == 3
    assert result.raw == sum(map(len, FILES.values()))
    assert result.bytes == sum(place.stat().st_size for place in (image / "criu").iterdir())
    shutil.rmtree(image / "criu")
    (image / "criu").mkdir(0o700)
    result = verify(image, Silent())
    assert result.damage
    assert len(result.damage) == 3


def test_a_verification_can_be_interrupted(image: Path) -> None:
    interrupts = Interrupts()
    interrupts.request(2)
    with pytest.raises(Interrupted):
        verify(image, Silent(), interrupts)
    assert not [thread for thread in threading.enumerate() if thread.name == "check"]


def test_a_verification_refuses_what_it_cannot_judge(image: Path) -> None:
    with pytest.raises(NotAnImage):
        verify(image / "criu", Silent())
    (image / "criu" / "core-1.img.zst").chmod(0o620)
    with pytest.raises(ImageUntrusted):
        verify(image, Silent())
