"""Receipts of real jobs and a real CRIU: they add up, and say whose clock is whose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.root.harness import Field

pytestmark = pytest.mark.root

COUNTS = "import time\nmemory = bytearray(8 << 20)\nwhile True:\n    time.sleep(0.02)"


def receipt_of(stdout: str) -> dict[str, Any]:
    """Return the receipt in what a command printed, once it has been added up digit by digit."""
    told = json.loads(stdout, parse_float=Decimal)["result"]["receipt"]
    parts = sum((one["seconds"] for one in told["phases"] if not one["inside"]), Decimal(0))
    assert parts + told["unaccounted"] == told["seconds"]
    found: dict[str, Any] = json.loads(stdout)["result"]["receipt"]
    return found


def ends(receipt: dict[str, Any]) -> dict[str, float | None]:
    return {one["name"]: one["seconds"] for one in receipt["intervals"]}


def test_a_job_that_goes_and_comes(place: Field) -> None:
    """One dump and two restores, one of them in vain, and all that is to be read of them."""
    state = {"GPUCKPT_STATE_DIR": str(place.folder / "state")}
    job = place.start([sys.executable, "-c", COUNTS])
    image = place.folder / "image"
    done = place.gpuckpt("dump", job.pid, "-o", image, **state)
    dumped = receipt_of(done.stdout)
    names = [one["name"] for one in dumped["phases"] if not one["inside"]]
    assert names.index("freeze") + 1 == names.index("stream") < names.index("commit")
    told = ends(dumped)
    assert None not in told.values()
    assert done.result["pause"] == told["pause"]
    (criu,) = dumped["foreign"]
    assert (criu["whose"], criu["clock"]) == ("criu", "gettimeofday")
    assert criu["seconds"]["frozen"] > 0
    assert criu["counts"]["pages_written"] > 0
    back = place.gpuckpt("restore", image, "--settle", "0.3", "--probe", "true", **state)
    place.restored += back.result["pids"]
    restored = receipt_of(back.stdout)
    told = ends(restored)
    assert 0 < told["runs"] <= told["probe-ready"]  # type: ignore[operator]
    assert told["first-progress"] is not None  # it counts several times a second
    assert restored["foreign"][0]["counts"]["pages_restored"] > 0
    assert [one["name"] for one in restored["phases"] if one["waits"]] == ["criu"]
    again = place.gpuckpt("restore", image, **state)  # its pids are taken: nothing is touched
    assert again.code == 8
    shown = place.gpuckpt("show", image, **state).result["receipts"]
    assert [(one["operation"], one["outcome"]) for one in shown] == [
        ("dump", "done"),
        ("restore", "done"),
        ("restore", "host_mismatch"),
    ]
    assert [one["receipt"]["intervals"] for one in shown[:2]] == [
        dumped["intervals"],
        restored["intervals"],
    ]
    text = drawn(place, image, **state)
    assert "DUMP PHASE" in text
    assert "RESTORE PHASE" in text
    elsewhere = place.folder / "dump.json"
    elsewhere.write_text(done.stdout)
    assert "unaccounted" in drawn(place, elsewhere, **state)


def drawn(place: Field, what: Path, **env: str) -> str:
    """Return the lines of a timeline."""
    command = place.command("show", "--timeline", what)
    done = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout
