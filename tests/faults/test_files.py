"""Every call by which a file plan is carried out, or undone, fails or is the last one ever.

Afterwards, or after `repair`, all files are as they were before: bytes, names, owner, mode, times.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.errors import RestoreFailed
from gpuckpt.flow.returning.target.fileplan import Act
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.files import Files
from tests.fakes.host import FakeHost
from tests.file_trees import Killed, Restoring, failure, image_of, striking, tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.image.store import Image


@pytest.fixture
def tools(tmp_path: Path) -> Toolbox:
    """Give a fake host with the files of this one, and no process that has them."""
    (tmp_path / "proc").mkdir()
    whole = FakeHost().toolbox(tmp_path / "state")
    return replace(whole, files=Files(), carried=Carried(tmp_path / "proc"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def image(tools: Toolbox, place: Path, tmp_path: Path) -> Iterator[Image]:
    """Give an image of four files, of which every kind of step is to be done now."""
    (place / "inner").mkdir(parents=True)
    names = [place / "log", place / "changed", place / "linked", place / "inner" / "missing"]
    for number, path in enumerate(names):
        path.write_bytes(b"%d " % number * 50_000)
        os.utime(path, ns=(number, number + 7))
    os.link(place / "linked", place / "other")
    with image_of(tools, names, tmp_path) as found:
        with (place / "log").open("ab") as log:
            log.write(b"later\n" * 60_000)
        (place / "changed").write_bytes(b"of today")
        (place / "linked").write_bytes(b"of today, with two names")
        shutil.rmtree(place / "inner")
        yield found


def test_all_is_done_and_undone(tools: Toolbox, image: Image, place: Path) -> None:
    before = tree(place)
    job = Restoring(tools, image, "replace")
    assert job.acts() == {
        "inner": Act.FOLDER,
        "log": Act.CUT,
        "changed": Act.REPLACE,
        "linked": Act.REPLACE,
        "missing": Act.MAKE,
    }
    job.put()
    after = tree(place)
    assert {name: len(after[name][-1]) for name in ("log", "changed", "other")} == {
        "log": 100_000,
        "changed": 100_000,
        "other": 100_000,
    }
    assert after["log"][-2] == 7
    assert after["linked"] == after["other"]
    assert after["inner/missing"][-1] == b"3 " * 50_000
    tag = "3f0c7a52"
    assert after[f"log.after-{tag}"][-1] == b"later\n" * 60_000
    assert after[f"changed.replaced-{tag}"] == before["changed"]
    assert set(after) - set(before) == {
        "inner",
        "inner/missing",
        f"log.after-{tag}",
        f"changed.replaced-{tag}",
        f"linked.replaced-{tag}",
        f"other.replaced-{tag}",
    }
    job.placing.settle()  # what is kept is the user's
    assert tree(place) == after
    assert len(job.placing.kept) == 4
    job.placing.take_back()
    assert tree(place) == before


def cases(calls: list[str]) -> list[int]:
    """Return where to strike: of a row of the same call the first and the last."""
    kinds = ["", *calls, ""]
    return [n for n, name in enumerate(calls, 1) if name != kinds[n - 1] or name != kinds[n + 1]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_call_fails(tools: Toolbox, image: Image, place: Path, when: str) -> None:
    before = tree(place)
    job = Restoring(tools, image, "replace")
    with striking() as good:
        job.put()
    assert {"link", "ftruncate", "pwrite", "mkdir"} <= set(good.calls)
    job.placing.take_back()
    for number in cases(good.calls):
        job = Restoring(tools, image, "replace")
        # what failed already, as it may, does not fail again
        with striking(number, when, failure) as struck, suppress(RestoreFailed):
            job.put()
        where = number, struck.calls[number - 1], when
        job.placing.take_back()
        assert tree(place) == before, where


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_call_is_the_last(tools: Toolbox, image: Image, place: Path, when: str) -> None:
    """A kill comes at any of them; and once more while `repair` undoes it, or it fails there."""
    before = tree(place)
    job = Restoring(tools, image, "replace")
    with striking() as good:
        job.put()
    with striking() as back:
        job.repair()
    for number in cases(good.calls):
        job = Restoring(tools, image, "replace")
        with striking(number, when), suppress(Killed):
            job.put()
        job.repair()
        assert tree(place) == before, (number, good.calls[number - 1])
    for number in cases(back.calls):
        for what in (Killed, failure):
            job = Restoring(tools, image, "replace")
            job.put()
            with striking(number, when, what), suppress(Killed, OSError):
                job.repair()
            job.repair()
            assert tree(place) == before, (number, back.calls[number - 1], what)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_others_append_meanwhile_is_kept(
    tools: Toolbox, image: Image, place: Path, when: str
) -> None:
    """It follows the later bytes, in the order of time, wherever the way back is cut short."""
    log = place / "log"
    before = log.read_bytes()
    fresh = b"after the restore\n" * 3000

    def once() -> Restoring:
        job = Restoring(tools, image, "replace")
        job.put()
        with log.open("ab") as file:
            file.write(fresh)
        return job

    job = once()
    with striking() as back:
        job.repair()
    assert log.read_bytes() == before + fresh
    for number in cases(back.calls):
        os.truncate(log, len(before))
        job = once()
        with striking(number, when), suppress(Killed):
            job.repair()
        job.repair()
        assert log.read_bytes() == before + fresh, (number, back.calls[number - 1])
        assert not [path for path in place.iterdir() if "log." in path.name]
