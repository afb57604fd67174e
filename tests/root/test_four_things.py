"""A real job's software, model and tracked paths: recorded, compared, and each change refused."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.root.harness import lines_of, wait_for
from tests.software_places import EXTENSION, distribution, environment, snapshot, uninstall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.root.harness import Field

pytestmark = pytest.mark.root

COMMIT = "0123456789abcdef0123456789abcdef01234567"
JOB = """
import mmap, sys, time
import native._json, pure
weights = open(sys.argv[1], "rb")
mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ)
weights.close()
log = open(sys.argv[2], "a", buffering=1)
step = 0
while True:
    log.write(f"step {step}\\n")
    step += 1
    time.sleep(0.05)
"""


class Job:
    """A job with an environment of its own, weights of a snapshot, and a cache it does not open."""

    def __init__(self, place: Field) -> None:
        """Lay all of it down, and start it."""
        assert EXTENSION is not None, "no extension module to copy"
        self.place = place
        self.python, self.site = environment(place.folder / "venv")
        module: dict[str, bytes | Path] = {
            "native/__init__.py": b"",
            f"native/{EXTENSION.name}": EXTENSION,
        }
        distribution(self.site, "native-code", "1.0", module)
        self.pure = distribution(self.site, "pure", "1.0", {"pure/__init__.py": b"def f(): 1"})
        self.spare = distribution(self.site, "spare", "1.0", {"spare.py": b""})
        folder = snapshot(
            place.folder / "hub", "org/name", COMMIT, {"model.safetensors": b"weights" * 2000}
        )
        self.weights = folder / "model.safetensors"
        self.cache = place.folder / "cache"
        (self.cache / "deep").mkdir(parents=True)
        (self.cache / "deep" / "kernel.bin").write_bytes(b"compiled")
        (self.cache / "link").symlink_to("deep")
        self.log = place.folder / "log"
        words = [str(self.python), "-c", JOB, str(self.weights), str(self.log)]
        self.child = place.start(words)
        wait_for("the job's first step", lambda: lines_of(self.log))

    def other_pure(self, version: str, code: bytes = b"def f(): 2") -> None:
        """Install another version of a distribution that the job has loaded."""
        uninstall(self.pure)
        self.pure = distribution(self.site, "pure", version, {"pure/__init__.py": code})


def test_each_of_the_things_a_job_computes_with(place: Field) -> None:
    """One dump; then one change after the other, each refused by its gate and by no other."""
    job = Job(place)
    image = place.folder / "image"
    refused = place.gpuckpt("dump", job.child.pid, "-o", job.cache / "image", "--track", job.cache)
    assert refused.error == "usage"
    gone = place.folder / "none"
    assert place.gpuckpt("dump", job.child.pid, "-o", image, "--track", gone).error == "usage"
    asked = ("-o", image, "--track", job.cache, "--label", "model=mine")
    told = place.gpuckpt("dump", job.child.pid, *asked).result
    assert [one["path"] for one in told["tracked"]] == [str(job.cache)]
    job.child.wait()
    _recorded(job, image)
    assert place.gpuckpt("verify", image, "--host", "--json").result["findings"] == []

    for change, undo, gate, words in _changes(job):
        change()
        seen = place.gpuckpt("verify", image, "--host")
        assert seen.code == 8, (gate, seen.stdout, seen.stderr)
        (found,) = [one for one in seen.json["error"]["findings"] if one["severity"] == "blocker"]
        assert found["id"] == gate
        assert words in found["reason"]
        if gate == "gate-model":  # as for all
            restored = place.gpuckpt("restore", image)
            assert restored.code == 8
            assert gate in {one["id"] for one in restored.json["error"]["findings"]}
        undo()
    warned = _spare(job, image)
    assert warned == ["python-packages"]

    # in a namespace of its own it is still the same job
    pid = place.restore(image, "--pid-namespace")
    count = len(lines_of(job.log))
    wait_for("the restored job's next step", lambda: len(lines_of(job.log)) > count)
    again = place.folder / "again"
    place.gpuckpt("dump", pid, "-o", again, "--track", job.cache).result  # noqa: B018 - it must work
    first, second = (json.loads((one / "manifest.json").read_text()) for one in (image, again))
    for thing in ("engine", "models", "tracked"):
        assert first[thing] == second[thing]
    assert [one["version"] for one in first["outside"]["pythons"]] == [
        one["version"] for one in second["outside"]["pythons"]
    ]


def _recorded(job: Job, image: Path) -> None:
    manifest = json.loads((image / "manifest.json").read_text())
    loaded = {one["name"]: one for one in manifest["engine"]["distributions"]}
    assert set(loaded) == {"native-code", "pure"}
    assert "mapped" in loaded["native-code"]["known"]
    assert loaded["pure"]["known"] == ["memory"]
    (python,) = manifest["outside"]["pythons"]
    assert python["prefix"] == str(job.python.parent.parent)
    assert (python["implementation"], python["version"].count(".")) == ("cpython", 2)
    (weights,) = manifest["models"]
    assert (weights["model"], weights["commit"]) == ("org/name", COMMIT)
    assert {"argument", "mapped"} <= set(weights["known"])
    shown = job.place.gpuckpt("show", image, "--json").result["manifest"]
    assert shown["labels"] == {"model": "mine"}
    assert [one["entries"] for one in shown["tracked"]] == [4]


def _changes(job: Job) -> list[tuple[Callable[[], object], Callable[[], object], str, str]]:
    kernel, weights = job.cache / "deep" / "kernel.bin", job.weights
    venv = job.python.parent.parent
    aside = venv.with_name("aside")
    plain = weights.with_name("other.safetensors")
    return [
        (
            lambda: job.other_pure("2.0"),
            lambda: job.other_pure("1.0", b"def f(): 1"),
            "gate-engine-package",
            "pure was 1.0, now it is 2.0",
        ),
        (
            lambda: job.other_pure("1.0"),
            lambda: job.other_pure("1.0", b"def f(): 1"),
            "gate-engine-package",
            "pure 1.0 is another build",
        ),
        (
            lambda: kernel.write_bytes(b"COMPILED"),
            lambda: kernel.write_bytes(b"compiled"),
            "gate-tracked",
            "deep/kernel.bin is changed",
        ),
        (
            lambda: job.cache.rename(aside),
            lambda: aside.rename(job.cache),
            "gate-tracked",
            "is not here",
        ),
        (
            lambda: weights.rename(plain),
            lambda: plain.rename(weights),
            "gate-model",
            f"org/name at commit {COMMIT[:12]}",
        ),
    ]


def _spare(job: Job, image: Path) -> list[str]:
    """Remove what the job has not loaded: worth a warning, no more."""
    shutil.rmtree(job.spare)
    seen = job.place.gpuckpt("verify", image, "--host")
    return [one["id"] for one in seen.result["findings"]]
