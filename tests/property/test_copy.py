"""A copy is the image or not there; what was cut short is gone on with; nothing else is touched."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuckpt.errors import (
    GpuckptError,
    ImageDamaged,
    ImageExists,
    Interrupted,
    NotWritable,
    StoreFailed,
    UsageError,
)
from gpuckpt.events import Silent
from gpuckpt.flow.copy import CopyRequest, copy, final_place
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.flow.work.opening import open_image
from gpuckpt.image import landingfolder as landing
from gpuckpt.image.check import check_files
from gpuckpt.image.stage import sweep
from gpuckpt.location import Url
from tests import image_samples as samples
from tests.fakes.stores import FakeStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuckpt.flow.copy import CopyResult
    from gpuckpt.location import Location

KIB = 1 << 10
PART = 16 * KIB
URL = Url("s3://bucket/night-7")
FILES = {
    "inventory.img": b"x" * 100,
    "pages-1.img": os.urandom(900 * KIB),
    "core-1.img": b"y" * 5000,
    "empty.img": b"",
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "PART", PART)
    monkeypatch.setattr("gpuckpt.image.copying.PART", PART)
    monkeypatch.setattr(landing._FilePieces, "part", PART)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("copy") / "night-7"
    return samples.write_image(made, FILES, frame=64 * KIB)


def run(
    image: Location, place: Location, stores: FakeStores | None = None, **more: Any
) -> CopyResult:
    interrupts = more.pop("interrupts", None) or Interrupts()
    return copy(CopyRequest(image, place, **more), stores or FakeStores(), Silent(), interrupts)


def sound(place: Location, stores: FakeStores | None = None) -> bool:
    with open_image(place, stores or FakeStores()) as there:
        return check_files(there) == ()


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("part", [0, PART])
def test_there_and_back_it_is_the_same(image: Path, tmp_path: Path, part: int) -> None:
    stores = FakeStores(part=part)
    result = run(image, URL, stores)
    assert (result.sent, result.files) == (result.manifest.totals.stored, len(FILES))
    assert sound(URL, stores)
    there = stores.objects[str(URL)]
    assert there == {name: data for name, data in tree(image).items() if data is not None}
    elsewhere = Url("s3://other/night-8")
    run(URL, elsewhere, stores)
    run(elsewhere, tmp_path / "back", stores)
    assert tree(tmp_path / "back") == tree(image)
    assert sound(tmp_path / "back")
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o700
    assert stores.unfinished == set()


def test_what_is_there_already_is_not_sent_again(image: Path, tmp_path: Path) -> None:
    stores = FakeStores()
    for place in (URL, tmp_path / "copy"):
        assert not run(image, place, stores).already
        assert run(image, place, stores).already


def test_of_two_copies_of_an_image_both_may_end_well(image: Path) -> None:
    stores = FakeStores()
    calls: list[str] = []

    def around(name: str, call: Callable[[], Any]) -> Any:
        calls.append(name)
        if len(calls) == 9:  # this one is at work
            run(image, URL, FakeStores(objects=stores.objects))
        return call()

    stores.around = around
    run(image, URL, stores)
    assert sound(URL, stores)


def test_nothing_is_written_over(image: Path, tmp_path: Path) -> None:
    stores = FakeStores()
    other = samples.write_image(tmp_path / "other", {"a.img": b"x"}, image_id="another")
    run(other, URL, stores)
    before = dict(stores.objects[str(URL)])
    (tmp_path / "file").write_text("mine")
    for place in (URL, other, tmp_path / "file"):
        with pytest.raises(ImageExists):
            run(image, place, stores)
    assert stores.objects[str(URL)] == before
    used = Url("s3://bucket/used")
    stores.folder(used).there["notes.txt"] = b"mine"
    for discard in (False, True):
        with pytest.raises(ImageExists, match=r"notes\.txt|no copy"):
            run(image, used, stores, discard=discard)
    assert stores.objects[str(used)] == {"notes.txt": b"mine"}
    with pytest.raises(NotWritable):
        run(image, tmp_path / "none" / "copy")
    for inside in (image / "copy", other / "criu" / "copy"):
        with pytest.raises(UsageError, match="would damage it"):
            run(image, inside)


@pytest.mark.parametrize("claim", ["logs/upload-x", "logs/copy-other"])
def test_of_two_that_begin_at_once_one_gives_way(image: Path, claim: str) -> None:
    """The other had looked, and not claimed, when this one looked."""
    stores = FakeStores()

    def late(name: str, call: Callable[[], Any]) -> Any:
        if name == "store.put":
            stores.folder(URL).there[claim] = b""
        return call()

    stores.around = late
    with pytest.raises(ImageExists, match=claim):
        run(image, URL, stores)
    assert stores.objects[str(URL)] == {claim: b""}


@pytest.mark.parametrize(
    ("place", "inside", "gives"),
    [
        ("s3://b/x", False, "s3://b/x"),
        ("s3://b/x", True, "s3://b/x/night-7"),
        ("folder", False, "folder/night-7"),
        ("folder", True, "folder/night-7"),
        ("new", False, "new"),
        ("new", True, "new/night-7"),
        ("image", False, "image"),
    ],
)
def test_where_it_goes(tmp_path: Path, place: str, gives: str, *, inside: bool) -> None:
    (tmp_path / "folder").mkdir()
    samples.write_image(tmp_path / "image", {"a.img": b"x"})
    to: Location = Url(place) if "://" in place else tmp_path / place
    found = final_place(CopyRequest(Path("/images/night-7"), to, inside))
    assert str(found) == (gives if "://" in gives else str(tmp_path / gives))
    with pytest.raises(UsageError, match="has no name"):
        final_place(CopyRequest(Url("s3://bucket"), to, inside=True))


def failing(at: int, why: Callable[[], None]) -> Callable[[str, Callable[[], Any]], Any]:
    left = [at]

    def around(name: str, call: Callable[[], Any]) -> Any:
        del name
        left[0] -= 1
        if not left[0]:
            why()
        return call()

    return around


def refused() -> None:
    raise OSError("the store went away")


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(at=st.integers(1, 90), part=st.sampled_from([0, PART]))
def test_a_copy_that_was_cut_short_is_gone_on_with(image: Path, at: int, part: int) -> None:
    stores = FakeStores(around=failing(at, refused), part=part)
    try:
        run(image, URL, stores)
    except StoreFailed:
        if "manifest.json" not in stores.folder(URL).there:
            with pytest.raises(GpuckptError, match=r"nothing at|never finished|has no manifest"):
                open_image(URL, stores)
    stores.around = lambda _, call: call()
    before = stores.folder(URL).there.keys() - {"manifest.json"}
    result = run(image, URL, stores)
    whole = sum(len(data) for data in FILES.values())
    assert result.already or result.sent < whole or len(before) < len(FILES)
    assert sound(URL, stores)
    assert not [name for name in stores.folder(URL).names() if name.startswith("logs/")] or (
        result.already
    )


def test_a_signal_leaves_what_the_next_goes_on_with(image: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    interrupts = Interrupts()
    real = landing._FilePieces.write
    written: list[int] = []

    def write(self: Any, offset: int, data: bytes) -> None:
        written.append(offset)
        if len(written) == 30:
            interrupts.request(signal.SIGTERM)
        real(self, offset, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing._FilePieces, "write", write)
        with pytest.raises(Interrupted):
            run(image, place, interrupts=interrupts)
    assert not place.exists()
    result = run(image, place)
    assert 0 < result.sent < result.bytes
    assert sound(place)
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("call", ["store.read", "upload.write", "upload.close"])
def test_a_signal_waits_for_no_store_that_is_silent(image: Path, call: str) -> None:
    silent, over = threading.Event(), threading.Event()
    interrupts = Interrupts()

    def around(name: str, act: Callable[[], Any]) -> Any:
        if name == call and not over.is_set():
            silent.set()
            over.wait(30)
        return act()

    stores = FakeStores(around=around, part=PART)
    told: list[BaseException] = []

    def work() -> None:
        try:
            run(image, URL, stores, interrupts=interrupts)
        except GpuckptError as why:
            told.append(why)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    assert silent.wait(30)
    interrupts.request(signal.SIGTERM)
    working.join(10)
    over.set()
    assert [type(one) for one in told] == [Interrupted]
    assert "manifest.json" not in stores.objects[str(URL)]


def test_what_is_left_can_be_removed(image: Path, tmp_path: Path) -> None:
    stores = FakeStores(around=failing(12, refused), part=PART)
    with pytest.raises(StoreFailed):
        run(image, URL, stores)
    stores.around = lambda _, call: call()
    assert run(image, URL, stores, discard=True).discarded
    assert (stores.objects[str(URL)], stores.unfinished) == ({}, set())
    assert not run(image, URL, stores, discard=True).discarded
    stage = landing.FolderLanding(tmp_path / "copy", samples.manifest().image_id)
    stage.begin()
    with pytest.raises(ImageExists, match="another copy"):
        run(image, tmp_path / "copy")
    assert sweep(tmp_path, lambda _owner: False) == ()
    stage.close()
    assert run(image, tmp_path / "copy", discard=True).discarded
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("times", [1, 2])
def test_what_did_not_arrive_as_it_is_is_sent_once_more(image: Path, times: int) -> None:
    stores = FakeStores()
    left = [times]

    def around(name: str, call: Callable[[], Any]) -> Any:
        found = call()
        there = stores.objects[str(URL)]
        name = "criu/pages-1.img.zst"
        if left[0] and name in there and there[name][1000:1001] != b"?":
            there[name] = there[name][:1000] + b"?" + there[name][1001:]
            left[0] -= 1
        return found

    stores.around = around
    if times == 1:
        result = run(image, URL, stores)
        assert result.sent > result.bytes
        assert sound(URL, stores)
    else:
        with pytest.raises(ImageDamaged, match="s3://bucket/night-7"):
            run(image, URL, stores)
        assert "manifest.json" not in stores.objects[str(URL)]


def test_a_damaged_image_is_not_copied(image: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(image, tmp_path / "broken"))
    path = broken / "criu" / "pages-1.img.zst"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ImageDamaged, match=f"{broken} is damaged: criu/pages-1"):
        run(broken, tmp_path / "copy")
    path.unlink()
    with pytest.raises(ImageDamaged, match="it is missing"):
        run(broken, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
