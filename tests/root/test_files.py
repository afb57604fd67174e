"""What a real job writes travels in its image, and what it was given is known by its digest."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from blake3 import blake3

from gpuckpt.image.names import CARRIED
from gpuckpt.image.store import Image
from gpuckpt.image.unpack import Unpacker
from tests.root.harness import Field, lines_of, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def given() -> Iterator[Path]:
    """Give a folder outside of all places that a job works in, with an input and weights."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuckpt-test-") as name:
        (Path(name) / "input").write_bytes(b"an input")
        with (Path(name) / "weights.bin").open("wb") as file:
            file.truncate(65 * MIB)
            file.write(b"weights")
        yield Path(name)


def start(place: Field, given: Path) -> subprocess.Popen[bytes]:
    """Start the job with its settings, and a folder that it does not use."""
    (place.folder / "state.bin").write_bytes(bytes(4096))
    (place.folder / "settings").write_text("settings")
    for name in ("more/deep/one", "more/two.tmp"):
        (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (place.folder / name).write_text(name)
    (place.folder / "more" / "link").symlink_to("two.tmp")
    job = place.job("writer.py", given)
    wait_for("it writes", lambda: len(lines_of(place.folder / "steps.log")) > 2)
    return job


def carried(image: Path) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Return what an image carries, by name, with its bytes."""
    found: dict[str, tuple[dict[str, Any], bytes]] = {}
    with Image.open(image) as opened, tempfile.TemporaryFile() as whole:
        unpacker = Unpacker(opened)
        unpacker.send(CARRIED, whole.fileno())
        unpacker.close()
        whole.seek(0)
        for one in json.loads((image / "manifest.json").read_text())["carried"]:
            raw = whole.read(sum(length for _, length in one["extents"]))
            assert blake3(raw).hexdigest() == one["digest"]
            found[Path(one["names"][0]).name] = one, raw
    return found


def test_the_work_of_a_job_goes_along(place: Field, given: Path) -> None:
    job = start(place, given)
    folder = place.folder
    asked = ("--include", folder / "more", "--exclude", "*.tmp")
    plan = place.gpuckpt("plan", job.pid, *asked).result
    names = {"output", "steps.log", "state.bin", "settings", "sparse", "one"}
    told = {Path(one["path"]).name: one for one in plan["files"]["carried"]}
    assert {name for name in told if told[name]["path"].startswith(str(folder))} == names
    assert told["one"]["why"] == "included"
    assert told["sparse"]["bytes"] < MIB
    assert str(given / "input") in {one["path"] for one in plan["files"]["referenced"]}
    assert plan["findings"][0]["id"] == "include-left-out"
    # twice from one run: what goes on is only copied, and the second copy has more in its log
    going_on = folder / "going-on"
    place.gpuckpt("dump", job.pid, "-o", going_on, "--leave-running", *asked).result  # noqa: B018
    image = place.dump(job, *asked)
    for path in (going_on, image):
        found = carried(path)
        assert names == {name for name in found if name in names | {"weights.bin", "two.tmp"}}
        lines = found["steps.log"][1].decode().splitlines()
        assert lines == [f"step {number}" for number in range(1, len(lines) + 1)]
        # all of one instant: the mapped counter is at the step that was logged last, or will be
        assert int.from_bytes(found["state.bin"][1][:8], "little") - len(lines) in {0, 1}
        assert found["sparse"][0]["size"] == 8 * MIB + 3
        assert (found["one"][0]["why"], found["steps.log"][0]["why"]) == ("included", "written")
    _check_records(image, place, given)
    # the log has grown since, and the rest is gone: a boot cleans folders, a user does too
    size = (folder / "steps.log").stat().st_size
    with (folder / "steps.log").open("a") as log:
        log.write("later\n")
    (folder / "more" / "deep" / "one").unlink()
    (folder / "more" / "deep").rmdir()
    (folder / "sparse").unlink()
    place.restore(image)
    wait_for("it goes on", lambda: (folder / "steps.log").stat().st_size > size + 20)
    assert (folder / "more" / "deep" / "one").read_text() == "more/deep/one"
    assert (folder / "sparse").stat().st_size == 8 * MIB + 3


def _check_records(image: Path, place: Field, given: Path) -> None:
    manifest = json.loads((image / "manifest.json").read_text())
    files = {one["path"]: one for one in manifest["outside"]["files"]}
    weights = files[str(given / "weights.bin")]
    assert weights["sampled"]
    assert len(weights["digest"]) == 64
    assert set(weights["uses"]) == {"mapped", "open"}
    told = files[str(given / "input")]
    assert (told["digest"], told["sampled"]) == (blake3(b"an input").hexdigest(), False)
    assert (told["uid"], told["gid"]) == (0, 0)
    log = files[str(place.folder / "steps.log")]
    found = {one["names"][0]: one for one in manifest["carried"]}
    assert log["position"] == found[str(place.folder / "steps.log")]["size"]
    assert (log["digest"], log["uses"]) == ("", ["open"])
    assert "cwd" in files[str(place.folder)]["uses"]
    program = manifest["tree"][0]["exe"]
    assert "exe" in files[program]["uses"]
    assert files[program]["build_id"] or files[program]["digest"]
    kept = [one for one in manifest["outside"]["files"] if one["uses"] and not one["build_id"]]
    dull = [one["path"] for one in kept if not one["digest"] and one["path"] not in found]
    assert {Path(path).is_dir() for path in dull} == {True}


def test_what_is_asked_for_decides(place: Field, given: Path) -> None:
    job = start(place, given)
    answer = place.gpuckpt("plan", job.pid, "--include", place.folder / "nowhere")
    assert (answer.code, answer.json["error"]["findings"][0]["id"]) == (4, "include-unfit")
    few = place.gpuckpt("plan", job.pid, "--files", "none").result["files"]
    assert not [one for one in few["carried"] if one["path"].startswith(str(place.folder))]
    every = place.gpuckpt("plan", job.pid, "--files", "all", "--exclude", "weights.*").result
    paths = {one["path"] for one in every["files"]["carried"]}
    assert str(given / "input") in paths
    assert any("/libc.so" in path or "/libc-" in path for path in paths)
    assert [Path(one["path"]).name for one in every["files"]["referenced"]] == ["weights.bin"]
