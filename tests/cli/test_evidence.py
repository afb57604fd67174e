"""gpuckpt evidence as a command: its exit statuses, its object, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.image_samples import seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran

IMAGE = Path(__file__).parents[1] / "format" / "image-2"


def test_it_is_written_and_checked(gpuckpt: Callable[..., Ran], tmp_path: Path) -> None:
    ran = gpuckpt("evidence", IMAGE, "-q")
    path = tmp_path / "image-2.evidence.json"
    assert (ran.code, ran.out, path.stat().st_mode & 0o777) == (0, f"{path}\n", 0o600)
    for more in ((), (IMAGE,)):
        ran = gpuckpt("evidence", "--check", path, *more, "--json")
        result = ran.json["result"]
        assert (ran.code, result["holds"], result["findings"]) == (0, True, [])
        assert set(result) == {"path", "holds", "bytes", "findings", "evidence"}
        assert (result["bytes"] is None) == (not more)
    for more in (("--planned", 1), ("--target", "runs=3"), ("--restore", path)):
        assert gpuckpt("evidence", "--check", path, *more).code == 2
    told = gpuckpt("evidence", "--check", path).out
    assert "NOT PROVED" in told
    assert "dump done" in told


def test_what_was_planned_and_not_done_is_no_success(
    gpuckpt: Callable[..., Ran], tmp_path: Path
) -> None:
    path = tmp_path / "e.json"
    ran = gpuckpt("evidence", IMAGE, "-o", path, "--planned", 2, "--target", "runs=3", "--json")
    assert (ran.code, ran.json["error"]["name"]) == (12, "evidence_flawed")
    assert {one["id"] for one in ran.json["error"]["findings"]} == {"evidence-coverage"}
    assert path.exists()
    assert gpuckpt("evidence", "--check", path).code == 12
    document = json.loads(path.read_text())
    document["attempts"] = document["attempts"][:1]
    path.write_bytes(seal(document))
    ran = gpuckpt("evidence", "--check", path, "--json")
    assert ran.code == 12
    assert {one["object"] for one in ran.json["error"]["findings"]} >= {"plan.attempts"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((), "no IMAGE given"),
        ((IMAGE, "--target", "total=3"), "there is no interval 'total'"),
        ((IMAGE, "--target", "runs=soon"), "'soon' is not a number"),
        ((IMAGE, "--restore", "nothing"), "cannot be read"),
        (("--check", "nothing"), "cannot be read"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    line: tuple[object, ...], said: str, gpuckpt: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = gpuckpt("evidence", *line)
    assert ran.code == 2
    assert said in ran.err
    assert list(tmp_path.glob("*evidence*")) == []
