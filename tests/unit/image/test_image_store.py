"""An image that is there: whose it is, and whether its files are as recorded."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from gpuckpt.errors import ImageDamaged, ImageError, ImageUntrusted, NotAnImage, NotPrivileged
from gpuckpt.image import manifest as m
from gpuckpt.image import sealed
from gpuckpt.image.store import Image
from tests import image_places as places
from tests import image_samples as samples

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"pages-1.img": b"abc" * 100_000, "empty.img": b"", "inventory.img": b"x" * 10}


def look(image: Path) -> None:
    with Image.open(image) as opened:
        opened.check_sizes()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return samples.write_image(tmp_path / "job", FILES, frame=128 << 10)


def test_an_image_opens_and_passes(image: Path) -> None:
    with Image.open(image) as opened:
        assert set(opened.entries) == set(FILES)
        assert opened.entries["pages-1.img"].frames == 3
        opened.check_sizes()


def test_a_link_to_an_image_is_an_image(image: Path) -> None:
    (image.parent / "latest").symlink_to(image)
    with Image.open(image.parent / "latest") as opened:
        opened.check_sizes()


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, reason in (
        ("missing", "nothing"),
        ("file", "no folder"),
        ("file/below", "no folder"),
        ("folder", "no manifest"),
    ):
        with pytest.raises(NotAnImage, match=reason):
            Image.open(tmp_path / name)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "device"])
def test_a_manifest_that_is_no_regular_file(image: Path, kind: str) -> None:
    manifest = image / "manifest.json"
    manifest.rename(image.parent / "aside.json")
    if kind == "fifo":
        os.mkfifo(manifest, 0o600)
    elif kind == "link":
        manifest.symlink_to(image.parent / "aside.json")
    elif kind == "folder":
        manifest.mkdir(0o700)
    else:
        manifest.symlink_to("/dev/zero")
    with pytest.raises(ImageDamaged):
        Image.open(image)


def test_a_huge_manifest_is_refused_unread(image: Path) -> None:
    os.truncate(image / "manifest.json", 1 << 40)
    with pytest.raises(ImageDamaged, match="too many"):
        Image.open(image)


def test_a_missing_folder(image: Path) -> None:
    shutil.rmtree(image / "criu")
    with pytest.raises(ImageDamaged, match="criu: the folder is missing"):
        Image.open(image)
    (image / "criu").symlink_to("/tmp")
    with pytest.raises(ImageDamaged):
        Image.open(image)


def test_every_bad_file_is_named_at_once(image: Path) -> None:
    (image / "criu" / "inventory.img.zst").unlink()
    os.truncate(image / "criu" / "pages-1.img.zst", 100)
    with (image / "criu" / "empty.img.zst").open("ab") as file:
        file.write(b"+")
    with Image.open(image) as opened, pytest.raises(ImageDamaged) as caught:
        opened.check_sizes()
    found = {finding.object: finding.reason for finding in caught.value.findings}
    assert set(found) == {f"criu/{name}.zst" for name in FILES}
    assert "missing" in found["criu/inventory.img.zst"]
    assert "cut short by" in found["criu/pages-1.img.zst"]
    assert "1 bytes too long" in found["criu/empty.img.zst"]
    assert all(finding.blocks for finding in caught.value.findings)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_a_stored_file_of_another_kind(image: Path, kind: str) -> None:
    place = image / "criu" / "pages-1.img.zst"
    place.rename(image.parent / "aside")
    if kind == "fifo":
        os.mkfifo(place, 0o600)
    elif kind == "link":
        place.symlink_to(image.parent / "aside")
    else:
        place.mkdir(0o700)
    with Image.open(image) as opened, pytest.raises(ImageDamaged):
        opened.check_sizes()


def test_a_changed_table(image: Path) -> None:
    place = image / "criu" / "pages-1.img.zst"
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    with Image.open(image) as opened, pytest.raises(ImageDamaged, match="frame table"):
        opened.check_sizes()


@pytest.mark.parametrize("what", [".", "criu", "manifest.json", "criu/inventory.img.zst"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_others_who_could_write_it(image: Path, what: str, mode: int) -> None:
    place = image / what
    place.chmod(place.stat().st_mode | mode)
    with pytest.raises(ImageUntrusted, match="can be written by others") as caught:
        look(image)
    assert "chmod" in caught.value.hint
    with Image.open(image, trust=False) as opened:
        opened.check_sizes()


@pytest.mark.parametrize("what", [".", "criu", "manifest.json", "criu/inventory.img.zst"])
def test_an_image_of_another_user(image: Path, what: str) -> None:
    places.need_root("to give a file away")
    os.chown(image / what, places.NOBODY, 0)
    with pytest.raises(ImageUntrusted, match="belongs to user 65534"):
        look(image)
    with Image.open(image, trust=False) as opened:
        opened.check_sizes()


def test_an_image_this_user_may_not_read(image: Path) -> None:
    with places.other_user() as folder:
        del folder
        with pytest.raises(NotPrivileged):
            Image.open(image)


def claim(image: Path, **changes: int) -> Image:
    """Return the image with another claim about pages-1.img, as a hostile writer would."""
    entry = next(e for e in Image.open(image).manifest.files if e.name == "pages-1.img")
    place = image / "criu" / "pages-1.img.zst"
    fields = {
        "name": entry.name,
        "raw_size": entry.raw_size,
        "stored_size": entry.stored_size,
        "frames": entry.frames,
        "stored_blake3": entry.stored_blake3,
        "table_blake3": entry.table_blake3,
    } | changes
    os.truncate(place, fields["stored_size"])
    hostile = m.FileEntry(**fields)
    (image / "manifest.json").write_bytes(sealed.encode(samples.manifest(files=(hostile,))))
    return Image.open(image)


def test_a_terabyte_that_is_a_hole_is_refused_cheaply(image: Path) -> None:
    with claim(image, stored_size=1 << 40) as opened, pytest.raises(ImageDamaged, match="table"):
        opened.check_sizes()


def test_a_table_of_gigabytes_is_refused_unread(image: Path) -> None:
    frames = 1 << 26
    with pytest.raises(Exception, match="sizes that cannot be"):
        claim(image, stored_size=1 << 40, frames=frames, raw_size=frames * (64 << 10))


def test_an_image_error_says_which_class(image: Path) -> None:
    shutil.rmtree(image)
    with pytest.raises(ImageError) as caught:
        Image.open(image)
    assert caught.value.exit_code == 7
