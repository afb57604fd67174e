"""Stored files that are sent to a store: in parts or as they come, in bounded memory."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from gpuckpt.errors import ImageExists, NotWritable, StoreFailed, WriteFailed
from gpuckpt.image import names
from gpuckpt.image.asking import Asking
from gpuckpt.image.memory import Stopped
from gpuckpt.image.pack import Packer
from gpuckpt.image.remotestage import RemoteStage, claim_of
from gpuckpt.image.uploading import Uploads
from gpuckpt.location import Url
from tests import image_samples as samples
from tests.fakes.stores import FakeFolder, FakeStores
from tests.image_streams import feed, start_store, threads

URL = Url("s3://bucket/train")
MIB = 1 << 20


def place(stores: FakeStores) -> FakeFolder:
    return stores.folder(URL)


def begun(stores: FakeStores, owner: str = "me", patience: float = 5.0) -> RemoteStage:
    stage = RemoteStage(place(stores), URL, owner, patience)
    stage.claim()
    return stage


def pack(stage: RemoteStage, files: dict[str, bytes], level: int | None = 0) -> Any:
    packer = Packer(stage.shelf(memory=1 << 30), level)
    with threads() as pool:
        for name, data in files.items():
            writer, stored = start_store(pool, packer, name)
            pool.submit(feed, writer, data)
            stored.result(60)
    return packer.finish()


@pytest.mark.parametrize("part", [0, 17 * MIB], ids=["one after the other", "in parts"])
def test_an_image_is_there_when_its_manifest_is(part: int) -> None:
    stores = FakeStores(part=part)
    stage = begun(stores)
    raw = {"pages-1.img": os.urandom(40 * MIB), "core-1.img": b"core", "empty.img": b""}
    entries = pack(stage, raw)
    there = place(stores).names()
    assert {f"criu/{one.name}.zst": one.stored_size for one in entries} == {
        name: size for name, size in there.items() if name != claim_of("me")
    }
    assert names.MANIFEST not in there
    stage.commit(samples.manifest(files=entries))
    assert names.MANIFEST in place(stores).names()
    stage.close()
    assert claim_of("me") not in place(stores).names()
    # plain zstd's own, as FORMAT.md says: frames, then the table
    frames, table = samples.stored(b"core", level=1)
    assert len(place(stores).there["criu/core-1.img.zst"]) == pytest.approx(
        len(frames + table), abs=16
    )
    assert not stores.unfinished


def test_a_place_that_is_taken_is_left_alone() -> None:
    stores = FakeStores()
    place(stores).put("notes.txt", b"mine")
    stage = RemoteStage(place(stores), URL, "me")
    with pytest.raises(ImageExists):
        stage.claim()
    stage.discard()
    assert place(stores).names() == {"notes.txt": 4}


def test_of_two_that_begin_at_once_one_gives_way() -> None:
    """The other had looked, and not claimed, when this one looked."""
    stores = FakeStores()

    def late(name: str, call: Any) -> Any:
        if name == "store.put":
            place(stores).there[claim_of("other")] = b""
        return call()

    stores.around = late
    stage = RemoteStage(place(stores), URL, "me")
    with pytest.raises(ImageExists):
        stage.claim()
    stage.discard()
    assert place(stores).names() == {claim_of("other"): 0}


@pytest.mark.parametrize("part", [0, 17 * MIB])
def test_the_table_of_a_large_file_is_sent_as_it_is(part: int) -> None:
    """It comes as bytes, of a file above 2.6 GiB more than are copied one by one."""
    stores = FakeStores(part=part)
    stage = begun(stores)
    sink = stage.shelf(memory=1 << 30).create("pages-1.img", big=True)
    table = os.urandom(18 * MIB)
    for first in range(0, len(table), 4 * MIB):
        if piece := sink.append((table[first : first + 4 * MIB],)):
            sink.write(piece)
    sink.end()
    assert place(stores).there["criu/pages-1.img.zst"] == table


def test_a_piece_that_is_never_sent_keeps_no_other_waiting() -> None:
    """The first was taken, but not yet under way, when all was stopped."""
    stage = begun(FakeStores())
    shelf = stage.shelf(memory=1 << 30)
    sink = shelf.create("pages-1.img", big=True)
    pieces = [sink.append([bytes(16 * MIB)]) for _ in range(2)]  # it takes no parts
    told: list[Exception] = []

    def second() -> None:
        try:
            sink.write(pieces[1])  # type: ignore[arg-type]
        except Stopped as why:
            told.append(why)

    waiting = threading.Thread(target=second, daemon=True)
    waiting.start()
    while not shelf._busy:
        waiting.join(0.01)
    shelf.stop()
    with pytest.raises(Stopped):
        sink.write(pieces[0])  # type: ignore[arg-type]
    waiting.join(5)
    assert (len(told), shelf.idle(5)) == (1, True)


def test_a_store_that_is_away_is_told_before_anything_is_touched() -> None:
    stores = FakeStores(away="on fire")
    with pytest.raises(NotWritable, match="on fire"):
        begun(stores)


@pytest.mark.parametrize("spoiled", ["short", "missing", "surplus"])
def test_what_the_store_does_not_have_is_no_image(spoiled: str) -> None:
    stores = FakeStores()
    stage = begun(stores)
    entries = pack(stage, {"a.img": b"a" * 100})
    there = place(stores).there
    if spoiled == "short":
        there["criu/a.img.zst"] = there["criu/a.img.zst"][:-1]
    elif spoiled == "missing":
        del there["criu/a.img.zst"]
    else:
        there["criu/b.img.zst"] = b"somebody else's"
    with pytest.raises(WriteFailed, match=r"a\.img|b\.img"):
        stage.commit(samples.manifest(files=entries))
    assert not stage.committed
    stage.discard()
    assert place(stores).names() == {}


def test_a_commit_is_taken_back_manifest_first() -> None:
    stores = FakeStores()
    stage = begun(stores)
    stage.commit(samples.manifest(files=pack(stage, {"a.img": b"a"})))
    stage.discard()
    assert names.MANIFEST in place(stores).names(), "a committed image is never removed"
    stage.uncommit()
    assert names.MANIFEST not in place(stores).names()
    stage.discard()
    assert place(stores).names() == {}


def test_a_manifest_of_which_nobody_knows_whether_it_came_is_removed() -> None:
    stores, calls = FakeStores(), list[str]()
    stage = begun(stores)
    entries = pack(stage, {"a.img": b"a"})

    def lost(name: str, call: Any) -> Any:
        calls.append(name)
        done = call()
        if name == "store.put":
            raise StoreFailed("the answer was lost")
        return done

    stores.around = lost
    with pytest.raises(WriteFailed, match="the answer was lost"):
        stage.commit(samples.manifest(files=entries))
    assert names.MANIFEST not in place(stores).names()


def test_a_store_that_fails_in_the_middle_says_so_and_nothing_is_left() -> None:
    stores, sent = FakeStores(part=16 * MIB), list[str]()
    stage = begun(stores)

    def fails(name: str, call: Any) -> Any:
        sent.append(name)
        if name == "upload.write" and sent.count(name) > 1:
            raise StoreFailed("slow down")
        return call()

    stores.around = fails
    with pytest.raises(WriteFailed, match="slow down"):
        pack(stage, {"pages-1.img": os.urandom(80 * MIB)})
    stage.discard()
    assert place(stores).names() == {}
    assert not stores.unfinished


def test_what_cannot_be_removed_is_told() -> None:
    stores = FakeStores()
    stage = begun(stores)
    pack(stage, {"a.img": b"a"})
    stores.away = "unplugged"
    with pytest.raises(WriteFailed, match=r"unplugged; what was sent there is left \(1 objects"):
        stage.discard()


def test_a_silent_store_is_waited_for_no_longer_than_that() -> None:
    answer, asking = threading.Event(), Asking("s3://bucket", 0.05)
    with pytest.raises(WriteFailed, match=r"no answer within 0\.05 s"):
        asking(lambda: answer.wait(60))
    assert not asking.quiet()
    answer.set()
    assert asking.quiet()


def test_a_stop_lets_nothing_more_begin() -> None:
    uploads = Uploads(place(FakeStores()), str(URL), 0, 1 << 30)
    sink = uploads.create("a.img", big=True)
    uploads.stop()
    with pytest.raises(Stopped):
        sink.append([b"a"])
    assert uploads.idle(0)


@pytest.mark.parametrize(
    ("most", "memory", "writers"),
    [(0, 1 << 30, 8), (0, 128 * MIB, 2), (0, 24 * MIB, 1), (1 << 41, 4 << 30, 7)],
)
def test_senders_take_no_more_memory_than_there_is(most: int, memory: int, writers: int) -> None:
    uploads = Uploads(place(FakeStores()), str(URL), most, memory)
    assert uploads.writers == writers
    assert uploads.writers == 1 or uploads.memory <= memory // 2 + 1
