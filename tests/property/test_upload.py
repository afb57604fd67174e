"""Whatever call of a store fails, it holds a whole image afterwards, or nothing at all."""

from __future__ import annotations

import os
import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuckpt.errors import GpuckptError, StoreFailed
from gpuckpt.image.check import check_files
from gpuckpt.image.distant import DistantOrigin
from gpuckpt.image.pack import Packer
from gpuckpt.image.remotestage import RemoteStage
from gpuckpt.image.store import Image
from gpuckpt.location import Url
from tests import image_samples as samples
from tests.fakes.stores import FakeStores
from tests.image_streams import feed, start_store, threads

URL = Url("s3://bucket/train")
MIB = 1 << 20
FILES = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}\.img", fullmatch=True),
    st.integers(0, 300_000) | st.just(17 * MIB),
    min_size=1,
    max_size=4,
)


class Failing:
    """The n-th call fails, before or after its effect."""

    def __init__(self, number: int, *, after: bool) -> None:
        self.left, self.after = number, after
        self.lock = threading.Lock()

    def __call__(self, _: str, call: Any) -> Any:
        with self.lock:
            self.left -= 1
            hit = self.left == 0
        if hit and not self.after:
            raise StoreFailed("no")
        done = call()
        if hit:
            raise StoreFailed("the answer was lost")
        return done


def plainly(_: str, call: Any) -> Any:
    return call()


def send(stage: RemoteStage, files: dict[str, int]) -> None:
    stage.claim()
    packer = Packer(stage.shelf(memory=256 * MIB), None)
    with threads() as pool:
        for name, size in files.items():
            writer, stored = start_store(pool, packer, name)
            fed = pool.submit(feed, writer, os.urandom(size))
            try:
                stored.result(60)
            finally:
                fed.exception()
    stage.commit(samples.manifest(files=packer.finish()))


@settings(max_examples=25, deadline=None)
@given(FILES, st.integers(0, 40), st.booleans(), st.sampled_from([0, 16 * MIB]))
def test_an_image_or_nothing(files: dict[str, int], fault: int, after: bool, part: int) -> None:
    stores = FakeStores(part=part)
    stores.around = Failing(fault, after=after)
    stage = RemoteStage(stores.folder(URL), URL, "me")
    try:
        send(stage, files)
    except GpuckptError:
        stores.around = plainly
        stage.discard()
        assert not stores.folder(URL).there
        assert not stores.unfinished
        return
    stores.around = plainly
    with Image.on(DistantOrigin(stores.folder(URL), URL), URL) as image:
        assert not check_files(image)
        assert {one.name: one.raw_size for one in image.manifest.files} == files
