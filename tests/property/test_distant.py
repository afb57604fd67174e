"""An image of a store is read as one of this host is: the same bytes, the same damage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuckpt.errors import ImageDamaged, ImageError, NotAnImage, StoreFailed
from gpuckpt.image.ahead import Ahead
from gpuckpt.image.check import check_files
from gpuckpt.image.distant import DistantOrigin
from gpuckpt.image.store import Image
from gpuckpt.image.unpack import Unpacker
from gpuckpt.location import Url
from tests import image_samples as samples
from tests.fakes.stores import FakeFolder, FakeStores
from tests.image_streams import PATIENCE, drain, start_send, threads

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1 << 10
URL = Url("s3://bucket/night-7")
FILES = {
    "inventory.img": b"x" * 100,
    "pages-1.img": bytes(range(256)) * 4000 + bytes(3 << 20) + b"\1\2\3",
    "empty.img": b"",
}


def sent(image: Path, folder: FakeFolder) -> None:
    """Put an image of this host into a store."""
    for path in image.rglob("*"):
        if path.is_file():
            folder.there[str(path.relative_to(image))] = path.read_bytes()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("distant") / "night-7"
    return samples.write_image(made, FILES, frame=64 * KIB)


@pytest.fixture
def folder(local: Path) -> FakeFolder:
    made = FakeStores().folder(URL)
    sent(local, made)
    return made


def opened(folder: FakeFolder, block: int = 100 * KIB) -> Image:
    return Image.on(DistantOrigin(folder, URL, block), URL)


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(block=st.sampled_from([1000, 4096, 64 * KIB, 1 << 20]), workers=st.integers(1, 3))
def test_what_is_there_comes_out(folder: FakeFolder, block: int, workers: int) -> None:
    with opened(folder, block) as image, threads() as pool:
        image.check_sizes()
        assert check_files(image) == ()
        unpacker = Unpacker(image, workers=workers)
        sending = {name: start_send(pool, unpacker, name) for name in FILES}
        got = {name: pool.submit(drain, reader) for name, (reader, _) in sending.items()}
        assert {name: future.result(PATIENCE) for name, future in got.items()} == FILES
        unpacker.close()


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(where=st.floats(0, 1, exclude_max=True), name=st.sampled_from(sorted(FILES)))
def test_the_same_damage_is_found_here_and_there(
    local: Path, folder: FakeFolder, where: float, name: str
) -> None:
    path = local / "criu" / f"{name}.zst"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[int(where * len(whole))] ^= 1
    path.write_bytes(changed)
    folder.there[f"criu/{name}.zst"] = bytes(changed)
    try:
        with opened(folder) as there, Image.open(local) as here:
            found = check_files(there)
            assert found
            assert found == check_files(here)
    finally:
        path.write_bytes(whole)
        folder.there[f"criu/{name}.zst"] = whole


def test_missing_short_and_surplus_objects_are_found(folder: FakeFolder) -> None:
    folder.there["criu/pages-1.img.zst"] += b"x"
    del folder.there["criu/empty.img.zst"]
    folder.there.update({"criu/more.zst": b"", "logs/criu.log": b"", "owner": b"", "x/y": b""})
    with opened(folder) as image:
        assert [str(damage) for damage in check_files(image)] == [
            "criu/pages-1.img.zst: it is 1 bytes too long",
            "criu/empty.img.zst: it is missing",
            "criu/more.zst: it does not belong to the image",
            "x/y: it does not belong to the image",
        ]
        with pytest.raises(ImageDamaged, match="2 damages"):
            image.check_sizes()


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({}, "there is nothing at s3://bucket/night-7"),
        ({"criu/a.img.zst": b"x"}, "is no image: it has no manifest.json"),
        ({"criu/a.img.zst": b"x", "logs/copy-1": b""}, "is an image that was never finished"),
    ],
)
def test_what_is_no_image_is_said(there: dict[str, bytes], said: str) -> None:
    folder = FakeStores().folder(URL)
    folder.there.update(there)
    with pytest.raises(NotAnImage, match=said):
        opened(folder)


def test_an_object_that_goes_while_it_is_read_is_damage(folder: FakeFolder) -> None:
    with opened(folder, 4096) as image:
        del folder.there["criu/pages-1.img.zst"]
        assert "it was removed meanwhile" in str(check_files(image)[0])


def test_a_store_that_goes_away_ends_every_stream(folder: FakeFolder) -> None:
    with opened(folder, 4096) as image, threads() as pool:
        unpacker = Unpacker(image)
        assert unpacker.read("inventory.img") == FILES["inventory.img"]
        folder.stores.away = "gone"
        reader, sending = start_send(pool, unpacker, "pages-1.img")
        assert FILES["pages-1.img"].startswith(drain(reader))
        with pytest.raises(StoreFailed, match="gone"):
            sending.result(PATIENCE)
        with pytest.raises(StoreFailed, match="gone"):
            check_files(image)
        unpacker.close()
        folder.stores.away = ""
    with opened(folder, 4096) as image:
        unpacker = Unpacker(image)
        assert unpacker.read("pages-1.img", 1 << 30) == FILES["pages-1.img"]
        unpacker.close()


def test_a_store_that_hangs_keeps_nobody() -> None:
    asked, answer = threading.Event(), threading.Event()

    def read(name: str, start: int, length: int) -> bytes:
        asked.set()
        answer.wait(PATIENCE)
        return b"x" * length if name else bytes(start)

    ahead = Ahead(read, 10)
    with threads() as pool:
        waiting = pool.submit(ahead.get, "a", 1000, 990, 10)
        assert asked.wait(PATIENCE)
        ahead.close()
        ahead.close()
        with pytest.raises(ImageError, match="stopped"):
            ahead.get("a", 100, 0, 10)
        answer.set()
        assert [bytes(one) for one in waiting.result(PATIENCE)] == [b"x" * 10]


def test_a_store_that_failed_once_is_waited_for_no_more() -> None:
    """Else each of thousands of blocks takes the minutes that a silent store is given."""
    silent, fails, asked = threading.Event(), threading.Event(), list[int]()

    def read(_: str, start: int, length: int) -> bytes:
        asked.append(start)
        (silent if start else fails).wait(PATIENCE)
        if start == 0:
            raise StoreFailed("gone")
        return bytes(length)

    ahead = Ahead(read, 10)
    with threads() as pool:
        waiting = [pool.submit(ahead.get, "a", 1000, start, 10) for start in (0, 500, 990)]
        fails.set()
        for one in waiting:
            with pytest.raises(StoreFailed, match="gone"):
                one.result(PATIENCE)
        before = len(asked)
        with pytest.raises(StoreFailed, match="gone"):
            ahead.get("b", 1000, 0, 10)
        assert len(asked) == before
        silent.set()
    ahead.close()


def test_what_is_kept_is_bounded() -> None:
    calls: list[int] = []

    def read(name: str, start: int, length: int) -> bytes:
        del name
        calls.append(start)
        return bytes(length)

    ahead = Ahead(read, 10, most=200)
    for start in range(0, 10_000, 5):
        assert sum(map(len, ahead.get("a", 10_000, start, 10))) == min(10, 10_000 - start)
        assert sum(ahead._lengths.values()) <= 400
    assert len(calls) == 1000
    ahead.close()
