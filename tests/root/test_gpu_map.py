"""A job comes back on other GPUs: the real command, CRIU and call processes; NVML and the driver
are stand-ins.
"""  # noqa: D205

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpuckpt.image.sealed import decode
from tests.gpu_samples import GIB, switched, uuid
from tests.root.harness import exists, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.root.fake_gpu import Stage

pytestmark = pytest.mark.root

FIRST, SECOND = uuid("a", 0), uuid("a", 1)
HERE = switched("a", 2)


def test_to_the_other_gpu_and_to_another_host(stage: Stage) -> None:
    stage.board(HERE)
    job = stage.start(1, "env", "CUDA_VISIBLE_DEVICES=1")
    stage.board(HERE, [(job.pid, SECOND, GIB)])
    stage.driver.gpus((FIRST, SECOND), (FIRST, SECOND))
    image = stage.place.folder / "image"
    assert stage.gpuckpt("dump", job.pid, "-o", image).code == 0
    job.wait()
    wait_for("the pid is free", lambda: not exists(job.pid))
    manifest = decode((image / "manifest.json").read_bytes())
    assert manifest.tree[0].visible == (SECOND,)
    assert manifest.nvidia is not None
    assert [gpu.uuid for gpu in manifest.nvidia.gpus] == [FIRST, SECOND]

    stage.board(HERE)  # it is gone, and its memory is free
    asked = stage.actions()
    refused_maps(stage, image)
    refused_hosts(stage, image)
    assert stage.actions() == asked, "the driver was not even asked"
    assert not exists(job.pid)

    # the driver knows of a GPU that NVML did not tell of: the map is not whole
    stage.driver.gpus((FIRST, SECOND, uuid("a", 2)), (FIRST, SECOND))
    done = stage.gpuckpt("restore", image, "--gpu-map", "0=1,1=0", "--settle", "0.2")
    assert (done.code, done.error) == (9, "restore_failed")
    assert "refused the map of GPUs" in done.json["error"]["message"]
    wait_for("nothing is left", lambda: not exists(job.pid))

    stage.driver.gpus((FIRST, SECOND), (FIRST, SECOND))
    result = stage.gpuckpt("restore", image, "--gpu-map", "1=0", "--settle", "0.2").result
    stage.place.restored += result["pids"]
    assert result["gpu_map"] == {FIRST: SECOND, SECOND: FIRST}
    assert result["identity"]["changed"] == ["gpus"]  # it sees one: that has no order
    restored = [line for line in stage.driver.calls() if line.split()[1] == "restore"][-1]
    assert restored.endswith(f"{FIRST}={SECOND},{SECOND}={FIRST}")
    stage.counts_on()


def saved(stage: Stage, facts: Path, name: str) -> None:
    """Keep what this host says of itself, as if it were another."""
    told = stage.gpuckpt("doctor", "--facts").result
    told["host"]["hostname"] = name
    (facts / f"{name}.json").write_text(json.dumps(told))


def judged(stage: Stage, image: object, facts: Path) -> dict[str, dict[str, Any]]:
    """Judge the image on all hosts that are known by their facts."""
    told = stage.gpuckpt("compat", image, "--host-facts", facts).json["result"]["fits"]
    return {one["host"]: one for one in told}


def refused_maps(stage: Stage, image: object) -> None:
    for pairs, names in (("0=7,1=GPU-00aa", {"unknown", "unclear"}), ("0=1,1=00aa0001", {"twice"})):
        done = stage.gpuckpt("restore", image, "--gpu-map", pairs)
        assert (done.code, done.error) == (8, "host_mismatch")
        error = done.json["error"]
        blockers = {one["id"] for one in error["findings"] if one["severity"] == "blocker"}
        assert blockers == {f"gpu-map-{name}" for name in names}
        assert [one["old"]["uuid"] for one in error["gpus"]] == [FIRST, SECOND]


def refused_hosts(stage: Stage, image: object) -> None:
    """One GPU less, another model: the plan has it in a table, and shows what can be."""
    small = replace(HERE[1], name="NVIDIA L4", uuid=uuid("b", 1))
    facts = stage.place.folder / "facts"
    facts.mkdir()
    saved(stage, facts, "as-it-was")
    for gpus, gate, trouble in (
        (HERE[:1], "gate-gpu-missing", "no GPU is left for it"),
        ((HERE[0], small), "gate-gpu-model", "another model: NVIDIA L4"),
    ):
        stage.board(gpus)
        seen = stage.gpuckpt("restore", image, "--plan").json
        assert seen["exit_code"] == 8
        assert gate in [one["id"] for one in seen["result"]["findings"]]
        place = seen["result"]["gpus"][1]
        assert (place["trouble"], place["part"]) == (trouble, "used")
        assert place["needed"] >= GIB
        saved(stage, facts, gate)
        there = judged(stage, image, facts)[gate]
        assert there["gpus"] == seen["result"]["gpus"]
        renamed = [one for one in there["findings"] if one["id"] == "identity"]
        assert [one for one in there["findings"] if one not in renamed] == seen["result"][
            "findings"
        ]
        assert len(renamed) == 1
    stage.board(HERE)
    verdicts = {name: one["verdict"] for name, one in judged(stage, image, facts).items()}
    assert verdicts == {"as-it-was": "warnings", "gate-gpu-missing": "no", "gate-gpu-model": "no"}
    one = stage.gpuckpt("plan", image, "--gpu-map", "1=0").json["result"]
    assert [place["how"] for place in one["gpus"]] == ["planned", "asked"]
