"""What a job computes with, on its way into an image and through the gates of a restore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.errors import DumpFailed, HostMismatch, UsageError
from gpuckpt.events import Silent
from gpuckpt.flow.dump import dump
from gpuckpt.flow.request import DumpRequest, RestoreRequest
from gpuckpt.flow.restore import restore
from gpuckpt.flow.returning.target.judge import refusal
from gpuckpt.flow.unchanged import unchanged
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.tools.digest import Digest
from gpuckpt.tools.distributions import Installed
from gpuckpt.tools.interpreters import Interpreter
from gpuckpt.tools.libraries import Library
from gpuckpt.tools.software import Survey
from gpuckpt.tools.tracked import Walk
from gpuckpt.tools.weights import Weight
from tests.fakes.host import ROOT_PID, FakeHost

if TYPE_CHECKING:
    from pathlib import Path

    from gpuckpt.image.manifest import Manifest

SITE = "/venv/lib/python3.11/site-packages"
TORCH = Installed("torch", "2.9.0", SITE, "build")
WEIGHTS = "/hub/models--org--name/snapshots/abc/model.safetensors"
SURVEY = Survey(
    pythons=(Interpreter("/usr/lib/libpython3.11.so.1.0", "/venv", "3.11.2", "cpython"),),
    loaded={TORCH: ("mapped", "memory")},
    libraries=(Library("nccl", "2.27.3", "/usr/lib/libnccl.so.2.27.3"),),
    weights=(Weight(WEIGHTS, ("argument",), "org/name", "abc"),),
    digests={WEIGHTS: Digest("digest", True, 1 << 30, 5)},
)
CACHE = Walk("/cache", "folder", "digest", 3, 9, b"listing")


@pytest.fixture
def host() -> FakeHost:
    made = FakeHost.with_job(cuda=0)
    made.survey, made.packages["/venv"] = SURVEY, ("numpy-2.0.0", "torch-2.9.0")
    made.trees["/cache"] = CACHE
    return made


def taken(host: FakeHost, folder: Path, **changes: Any) -> Manifest:
    (folder / "state").mkdir(exist_ok=True)
    request = replace(DumpRequest(ROOT_PID, folder / "image", track=("/cache",)), **changes)
    return dump(host.toolbox(folder / "state"), request, Silent(), Interrupts()).manifest


def test_all_of_it_is_written_down_and_compared(host: FakeHost, tmp_path: Path) -> None:
    manifest = taken(host, tmp_path)
    (torch,) = manifest.engine.distributions
    assert (torch.name, torch.version, torch.known) == ("torch", "2.9.0", ("mapped", "memory"))
    assert manifest.outside.pythons[0].version == "3.11.2"
    assert (manifest.models[0].commit, manifest.models[0].sampled) == ("abc", True)
    assert manifest.tracked[0].listing == b"listing"
    tools = host.toolbox(tmp_path / "state")
    assert unchanged(tools, manifest).findings == ()

    newer = replace(TORCH, version="2.9.1")
    host.survey = Survey(loaded={newer: ()}, digests={})
    host.packages["/venv"] = ("numpy-2.1.0", "torch-2.9.1")
    host.trees["/cache"] = replace(CACHE, digest="other", listing=b"other")
    seen = unchanged(tools, manifest)
    assert {one.id for one in seen.findings} == {
        *("gate-engine-python", "gate-engine-package", "gate-engine-library"),
        *("gate-model", "gate-tracked", "python-packages"),
    }
    assert isinstance(seen.error, HostMismatch)
    request = RestoreRequest(tmp_path / "image", settle=0.0)
    with pytest.raises(HostMismatch):
        restore(tools, request, Silent(), Interrupts())
    forced = frozenset(one.id for one in seen.findings if one.blocks)
    assert all(one.startswith("gate-") for one in forced)
    assert refusal(seen.findings, forced) is None


def test_a_path_that_cannot_be_tracked_stops_the_dump_at_once(
    host: FakeHost, tmp_path: Path
) -> None:
    before = dict(host.processes)
    for path, words in (("/none", "is not there"), (str(tmp_path), "a dump writes to")):
        with pytest.raises(UsageError, match=words):
            taken(host, tmp_path, track=(path,))
    assert host.processes == before
    assert not (tmp_path / "image").exists()


def test_what_vanishes_while_the_job_stands_still_undoes_the_dump(
    host: FakeHost, tmp_path: Path
) -> None:
    trees = [CACHE, None]
    host.trees = type("Trees", (), {"get": lambda *_: trees.pop(0)})()
    with pytest.raises(DumpFailed, match="/cache, which is tracked, is gone"):
        taken(host, tmp_path)
    assert ROOT_PID in host.processes
    assert not (tmp_path / "image").exists()
