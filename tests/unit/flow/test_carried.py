"""What becomes of carried files at a restore, for every way they may stand."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from gpuckpt.errors import DumpFailed, RestoreFailed
from gpuckpt.flow.leftovers.placed import clear, remaining
from gpuckpt.flow.returning.ledger import Ledger, Restored
from gpuckpt.flow.returning.placing import Placing
from gpuckpt.flow.returning.target import carried as rules
from gpuckpt.flow.returning.target.fileplan import file_plan
from gpuckpt.flow.returning.target.standing import Standing, State, standings
from gpuckpt.flow.taking import carry
from gpuckpt.image.pack import Packer
from gpuckpt.image.sink import Folder
from gpuckpt.image.store import Image
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.files import Files
from tests import image_samples
from tests.fakes.host import FakeHost, Fault, _Counted
from tests.unit.flow.test_target_rules import FACTS, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuckpt.flow.returning.target.facts import TargetFacts
    from gpuckpt.flow.work.toolbox import Toolbox
    from gpuckpt.model import CarriedFile

BYTES = b"what the job had"


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gpuckpt-test-") as folder:
        yield Path(folder)


@pytest.fixture
def tools(tmp_path: Path) -> Toolbox:
    """Give a fake host with the files of this one."""
    whole = FakeHost().toolbox(tmp_path / "state")
    return replace(whole, files=Files(), carried=Carried(Path("/proc")))


def image_of(tools: Toolbox, shm: Path, folder: Path) -> Image:
    """Write an image that carries a semaphore, with CRIU's name for it, and a block."""
    for name in ("sem.x", "block"):
        (shm / name).write_bytes(BYTES)
    os.link(shm / "sem.x", shm / "link_remap.7")
    found = tools.carried.examine({str(shm / "block"): True}, [str(shm / "link_remap.7")])
    with (folder / "bytes").open("wb") as into:
        files = tuple(replace(one, digest=tools.carried.copy(one, into.fileno())) for one in found)
    (shm / "link_remap.7").unlink()
    stored = {"gpuckpt-files": (folder / "bytes").read_bytes()}
    host = image_samples.host(boot_id="boot")
    path = image_samples.write_image(folder / "image", stored, carried=files, host=host)
    return Image.open(path)


def look(tools: Toolbox, image: Image, boot: str = "boot") -> dict[str, Standing]:
    found = standings(tools, image.manifest, boot)
    return {Path(one.file.path).name: one for one in found}


def states(tools: Toolbox, image: Image, boot: str = "boot") -> list[State]:
    return [one.state for one in look(tools, image, boot).values()]


def placing(tools: Toolbox, image: Image) -> Placing:
    steps = file_plan(image.manifest, look(tools, image).values(), {})
    return Placing(tools, image, steps, lambda **_: None)


def test_every_way_they_stand(tools: Toolbox, shm: Path, tmp_path: Path) -> None:
    with image_of(tools, shm, tmp_path) as image:
        assert states(tools, image) == [State.THERE, State.THERE]
        # after a boot the inodes say nothing, and the bytes do
        assert states(tools, image, "later") == [State.THERE, State.THERE]
        (shm / "block").write_bytes(b"what it became. ")
        assert states(tools, image) == [State.THERE, State.STALE]
        assert look(tools, image, "later")["block"].why == "its bytes are others"
        with (shm / "block").open():
            used = look(tools, image)["block"]
            assert (used.state, used.pid) == (State.TAKEN, os.getpid())
        (shm / "block").chmod(0o604)
        assert look(tools, image, "later")["block"].why == "its mode is 0604"
        os.truncate(shm / "block", 3)
        (shm / "sem.x").unlink()
        (shm / "sem.x").mkdir()
        assert states(tools, image) == [State.TAKEN, State.STALE]
        (shm / "sem.x").rmdir()
        (shm / "block").unlink()
        assert states(tools, image) == [State.MISSING, State.MISSING]
        # what a restore has made is the job's own as well
        (shm / "sem.x").write_bytes(b"written by a restored copy")
        assert states(tools, image) == [State.TAKEN, State.MISSING]
        seen = (shm / "sem.x").stat()
        restored = Restored(
            image_id="x", image="/x", at="", boot_id="boot", processes=(),
            files=((seen.st_dev, seen.st_ino),),
        )  # fmt: skip
        Ledger(tools.state_dir).add(restored)
        assert states(tools, image) == [State.STALE, State.MISSING]


def test_put_and_taken_back(tools: Toolbox, shm: Path, tmp_path: Path) -> None:
    with image_of(tools, shm, tmp_path) as image:
        (shm / "block").write_bytes(b"what it became. ")
        (shm / "sem.x").unlink()
        job = placing(tools, image)
        job.put(lambda _: None)
        assert (shm / "sem.x").read_bytes() == (shm / "block").read_bytes() == BYTES
        assert (shm / "link_remap.7").samefile(shm / "sem.x")
        assert len(remaining(tools, job.placed, job_stands=False)) == 4
        assert len(remaining(tools, job.placed, job_stands=True)) == 2
        job.take_back()
        assert [one.name for one in shm.iterdir()] == ["block"]
        assert (shm / "block").read_bytes() == b"what it became. "
        # once more, and this time it comes to a good end
        job = placing(tools, image)
        job.put(lambda _: None)
        job.settle()
        assert {one.name for one in shm.iterdir()} == {"sem.x", "block"}
        assert len(job.inodes) == 2
        # names that others have by now stay
        (shm / "sem.x").unlink()
        (shm / "sem.x").write_bytes(b"of somebody else")
        clear(tools, job.placed, job_stands=False)
        assert [one.name for one in shm.iterdir()] == ["sem.x"]


def test_whatever_fails_is_taken_back(tools: Toolbox, shm: Path, tmp_path: Path) -> None:
    """Each call fails, before its effect and after it."""

    def begin() -> tuple[FakeHost, Placing]:
        host = FakeHost()
        (shm / "sem.x").unlink(missing_ok=True)
        (shm / "block").write_bytes(b"what it became. ")
        job = placing(replace(tools, carried=_Counted(host, "carried", tools.carried)), image)  # type: ignore[arg-type]
        host.calls.clear()
        return host, job

    with image_of(tools, shm, tmp_path) as image:
        good, job = begin()
        job.put(lambda _: None)
        calls = [*good.calls]
        job.take_back()
        assert {"carried.make", "carried.move", "carried.name"} <= set(calls)
        for number, name in enumerate(calls, 1):
            for when in ("before", "after"):
                if (name, when) == ("carried.make", "after"):
                    continue  # the file has no name, and goes with its descriptor
                host, job = begin()
                host.fault = Fault(number, "error", when)
                with pytest.raises(RestoreFailed):
                    job.put(lambda _: None)
                job.take_back()
                assert [one.name for one in shm.iterdir()] == ["block"], (number, name, when)
                assert (shm / "block").read_bytes() == b"what it became. "


def test_a_name_that_is_taken_in_between(tools: Toolbox, shm: Path, tmp_path: Path) -> None:
    with image_of(tools, shm, tmp_path) as image:
        (shm / "sem.x").unlink()
        job = placing(tools, image)
        (shm / "link_remap.7").write_bytes(b"of another dump")
        with pytest.raises(
            RestoreFailed, match=r"link_remap\.7 could not be put back: File exists"
        ):
            job.put(lambda _: None)
        job.take_back()
        assert (shm / "link_remap.7").read_bytes() == b"of another dump"
        assert not (shm / "sem.x").exists()


def test_the_rules(tools: Toolbox, shm: Path, tmp_path: Path) -> None:
    with image_of(tools, shm, tmp_path) as image:
        semaphore, block = image.manifest.carried
    there = Standing(semaphore, State.THERE, "/dev/shm/sem.x", 1, 2)
    missing = Standing(block, State.MISSING)
    link = {semaphore.link: True}
    folder = str(shm)

    def ids(*here: Standing, **facts: Any) -> list[str]:
        manifest = msgspec.structs.replace(PLAIN, carried=carried(here))
        steps = file_plan(manifest, here, {})
        known: TargetFacts = replace(FACTS, carried=here, steps=steps, **facts)
        return [one.id for rule in rules.RULES for one in rule(manifest, known)]

    def carried(here: tuple[Standing, ...]) -> tuple[CarriedFile, ...]:
        return tuple(one.file for one in here)

    assert ids(there, missing) == []
    assert ids(replace(there, pid=7)) == ["gate-file-shared"]
    assert ids(replace(there, state=State.TAKEN)) == ["file-taken"]
    assert ids(replace(there, state=State.STALE)) == ["file-stale"]
    assert ids(there, names=link) == ["remap-in-the-way"]
    assert ids(missing, rooms={folder: None}) == ["carried-folder"]
    assert ids(missing, rooms={folder: len(BYTES) - 1}) == ["carried-room"]
    assert ids(missing, rooms={folder: len(BYTES)}) == []


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (OSError(5, "Input/output error", "/dev/shm/x"), "/dev/shm/x cannot be read"),
        (DumpFailed("it is another file now"), "it is another file now"),
    ],
)
def test_no_failure_of_carrying_is_lost(tmp_path: Path, why: Exception, told: str) -> None:
    """It happens in a thread of its own; half of the files would go along, and nobody knew."""
    tools = mock.Mock(carried=mock.Mock(copy=mock.Mock(side_effect=why)))
    packer = Packer(Folder(tmp_path))
    with pytest.raises(DumpFailed, match=told):
        carry.store(tools, (mock.Mock(),), packer)
    packer.abort()
