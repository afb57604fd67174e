"""What compat says: one answer in full, many as a matrix, names for a scheduler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuckpt.cli import compat, plain
from gpuckpt.cli.page import Table
from gpuckpt.flow import compat as flow
from gpuckpt.flow.returning.opening import Opened
from tests import gpu_samples, host_samples
from tests.cli.test_look import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

EIGHT = gpu_samples.image(gpu_samples.switched("a"), gpu_samples.ranks(8))
FOUR = gpu_samples.image(gpu_samples.switched("c", 4), gpu_samples.ranks(4))
IMAGES = {"train-8": EIGHT, "eval-4": FOUR}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of facts: one host for each image, and one for none."""
    facts = tmp_path / "facts"
    facts.mkdir()
    host_samples.write(facts / "a.json", host_samples.saved("big-node"))
    four = gpu_samples.nvidia(gpu_samples.switched("d", 4))
    host_samples.write(facts / "b.json", host_samples.saved("small-node", four, libc="musl"))
    host_samples.write(facts / "c.json", host_samples.saved("no-gpu", None))
    monkeypatch.setattr(flow, "examined", lambda path: Opened(path, IMAGES[path.name]))
    return facts


def test_one_answer_is_told_in_full(place: Path, gpuckpt: Callable[..., Ran]) -> None:
    ran = gpuckpt("compat", "train-8", "--host-facts", place / "a.json")
    assert ran.code == 0
    assert (
        ran.out.splitlines()[0]
        == "this image can be restored on big-node, as far as its facts tell"
    )
    assert "not judged: pids, earlier restores, copies of the job, other restores:" in ran.out
    assert "host name  node1  big-node" in ran.out
    ran = gpuckpt("compat", "train-8", "--host-facts", place / "c.json")
    assert (ran.code, ran.out.splitlines()[0]) == (8, "1 finding stops a restore on no-gpu")
    assert "blocker gate-driver NVIDIA driver: " in ran.out


def test_a_scheduler_gets_names_best_first(place: Path, gpuckpt: Callable[..., Ran]) -> None:
    ran = gpuckpt("compat", "eval-4", "--host-facts", place, "--force-gate", "gate-gpu-count", "-q")
    assert (ran.code, ran.out) == (0, "small-node\nbig-node\n")
    ran = gpuckpt("compat", "eval-4", "--host-facts", place / "c.json", "-q")
    assert (ran.code, ran.out) == (8, "")


def test_json_has_every_finding(place: Path, gpuckpt: Callable[..., Ran]) -> None:
    ran = gpuckpt("compat", "train-8", "eval-4", "--host-facts", place, "--json")
    told = ran.json["result"]
    assert set(told) == {"images", "hosts", "fits", "best", "homeless"}
    assert (ran.code, told["best"], told["homeless"], len(told["fits"])) == (0, [], [], 6)
    assert {one["name"] for one in told["hosts"]} == {"big-node", "small-node", "no-gpu"}
    fit = told["fits"][-1]
    assert (fit["host"], fit["can_restore"], fit["error"]) == ("no-gpu", False, "host_mismatch")
    assert [one["id"] for one in fit["findings"]] == ["gate-driver"]
    assert fit["not_judged"] == ["pids", "earlier restores", "copies of the job", "other restores"]
    assert fit["identity"]["hostname"] == {"old": "node1", "new": "no-gpu"}


def matrix(place: Path, **names: Any) -> Any:
    images = [place / name for name in names or IMAGES]
    found = flow.compat(pytest.fail, images, sorted(place.glob("*.json")))
    return compat.outcome(found).page


def test_a_matrix_fits_any_terminal(place: Path) -> None:
    page = matrix(place)
    assert page.title == "every image has a host; 0 of 3 hosts can take all 2"
    for width in (80, 120):
        lines = drawn(page, width)
        assert max(map(len, lines)) <= width
        rows = [line.split() for line in lines]
        assert ["HOST", *IMAGES] in rows
        assert ["big-node", "yes", "no"] in rows
        assert not any("…" in line for line in lines)


def test_plain_lines_have_an_answer_each(place: Path, gpuckpt: Callable[..., Ran]) -> None:
    lines = gpuckpt("compat", "train-8", "--host-facts", place).out.splitlines()
    assert lines[0] == "1 of 3 hosts can take the image"
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert rows["HOST"] == ["HOST", "FACTS", "RESTORE", "WHY"]
    assert rows["big-node"][-2:] == ["yes", "-"]
    assert rows["no-gpu"][-2:] == ["no", "gate-driver"]
    assert rows["small-node"][-2:] == ["no", "gate-gpu-missing"]


def test_too_many_images_for_a_matrix_get_lines(place: Path) -> None:
    many = {f"an-image-with-a-long-name-{number}": EIGHT for number in range(4)}
    IMAGES.update(many)
    try:
        page = matrix(place, **many)
    finally:
        for name in many:
            del IMAGES[name]
    (table,) = [block for block in page.blocks if isinstance(block, Table)]
    assert (table.columns, len(table.rows)) == (("HOST", "IMAGE", "FACTS", "RESTORE", "WHY"), 12)
    assert len(list(plain.lines(page))) > 12


def test_facts_that_are_none_are_a_matter_of_usage(
    place: Path, tmp_path: Path, gpuckpt: Callable[..., Ran]
) -> None:
    (place / "d.json").write_text("{}")
    ran = gpuckpt("compat", "train-8", "--host-facts", place, "--json")
    assert (ran.code, ran.json["error"]["name"]) == (2, "usage")
    assert "d.json holds no facts of a host" in ran.json["error"]["message"]
    (tmp_path / "empty").mkdir()
    ran = gpuckpt("compat", "train-8", "--host-facts", tmp_path / "empty")
    assert ran.code == 2
    assert "holds no *.json" in ran.err


@pytest.mark.usefixtures("place")
def test_doctor_prints_facts_that_compat_takes(tmp_path: Path, gpuckpt: Callable[..., Ran]) -> None:
    ran = gpuckpt("doctor", "--facts")
    told = json.loads(ran.out)
    assert (ran.code, told["schema"], told["version"]) == (0, "gpuckpt-host-facts", 1)
    assert gpuckpt("doctor", "--facts", "--json").json["result"].keys() == told.keys()
    (tmp_path / "here.json").write_text(ran.out)
    found = gpuckpt("compat", "train-8", "--host-facts", tmp_path / "here.json", "--json").json
    assert found["result"]["hosts"][0]["name"] == told["host"]["hostname"]
    assert gpuckpt("doctor", "--for", "train-8").code == 2
