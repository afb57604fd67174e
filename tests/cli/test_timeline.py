"""How receipts are told: what is inside what, what is left over, and what never came."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import structs

from gpuckpt.cli import plain, restore, show, timeline
from gpuckpt.flow.request import RestoreResult
from gpuckpt.flow.sight.experience import Lately
from gpuckpt.timing import Interval, Phase, Receipt
from tests.cli import samples
from tests.cli.test_look import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

PAGE = show.receipts(samples.IMAGE, (samples.RECORD,)).page


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_bars_in_order(width: int) -> None:
    lines = [line.rstrip() for line in drawn(PAGE, width)]
    assert max(map(len, lines)) <= width
    at = {line.split()[0]: line for line in reversed(lines) if line.strip()}
    assert at["gates"].startswith("  gates ")
    assert at["approve"].startswith("    approve ")
    assert at["tidying"].startswith("    tidying ")
    assert at["unaccounted"].endswith("0.900 s")
    assert at["all"].endswith("12.5 s")
    assert ("1.8 GiB/s" in at["criu"]) == (width == 120)
    assert at["criu"].index("█") >= at["gates"].index("█")


def test_plain_lines_can_be_added_up() -> None:
    text = "\n".join(plain.lines(PAGE))
    assert "restore of 2026-07-14T03:09:40Z, done:" in text
    rows = [line.split() for line in text.splitlines()]
    inside = {row[0]: row[-1] for row in rows if row[0] in {"gates", "approve", "tidying"}}
    assert inside == {"gates": "-", "approve": "criu", "tidying": "all"}
    assert ["runs", "11.8", "s", "begun", "unlocked"] in rows
    assert "probe-ready: no --probe was given" in text
    assert ["CRIU", "2.50", "s", "criu", "storage"] in rows
    assert "criu says: restore 7.90 s, 3700000 pages restored; its clock: gettimeofday" in text
    assert "forecast: expected 10.0 s, took 11.8 s (+18 %)" in text


def test_of_many_restores_the_dump_and_the_newest_are_drawn() -> None:
    first = structs.replace(samples.RECORD, operation="dump", started="first")
    more = [structs.replace(samples.RECORD, started=f"at {number}") for number in range(20)]
    found = show.receipts(samples.IMAGE, (first, *more))
    text = "\n".join(plain.lines(found.page))
    assert "dump of first" in text
    assert "at 19" in text
    assert "at 3:" not in text
    assert "and 15 more" in text
    assert len(found.payload["receipts"]) == 21  # type: ignore[index]


def test_a_receipt_of_a_file_is_drawn(tmp_path: Path, gpuckpt: Callable[..., Ran]) -> None:
    file = tmp_path / "receipt.json"
    file.write_bytes(msgspec.json.encode(samples.RECORD))
    ran = gpuckpt("show", "--timeline", str(file))
    assert ran.code == 0
    assert "RESTORE PHASE" in ran.out
    ran = gpuckpt("show", "--timeline", str(file), "--json")
    assert json.loads(ran.out)["result"]["receipts"][0]["receipt"]["unaccounted"] == 0.9
    file.write_text("nothing")
    assert gpuckpt("show", "--timeline", str(file)).code == 2


def test_an_old_receipt_has_a_rest_too() -> None:
    assert samples.RECEIPT.unaccounted is None
    assert samples.RECEIPT.rest == 0.0
    assert Receipt("dump", "then", 2.5, ()).rest == 2.5
    assert len(list(timeline.of_receipt(samples.RECEIPT, "x"))) == 1


def test_words_for_forecasts() -> None:
    none = Receipt("restore", "then", 2.5, ())
    assert timeline.forecast(3.1, 3.4, none) == "expected 3.10 s, took 3.40 s (+10 %)"
    assert timeline.forecast(2.0, 1.5, none) == "expected 2.00 s, took 1.50 s (-25 %)"
    assert timeline.forecast(None, 1.0, none) == timeline.forecast(1.0, None, none) == ""
    assert timeline.lately(Lately()) == ""
    assert timeline.lately(Lately(0.083, 12)) == "lately off by +8 % (median of 12)"
    assert timeline.reached(samples.RECORD.receipt) == "11.8 s it runs"


def test_what_was_reached_is_told_in_order() -> None:
    got = (("runs", 1.07), ("first-progress", 1.31), ("probe-ready", 1.08))
    found = tuple(Interval(name, "begun", name, seconds) for name, seconds in got)
    told = timeline.reached(Receipt("restore", "then", 2.5, (), intervals=found))
    assert told == "1.07 s it runs, 1.08 s the probe succeeded, 1.31 s was seen to move"


def test_a_proof_is_in_no_forecast_wherever_it_is_told() -> None:
    runs = Interval("runs", "begun", "released", 1.1)
    receipt = Receipt("restore", "then", 2.5, (Phase("prove", 0.5, 0.2),), intervals=(runs,))
    job = RestoreResult(samples.IMAGE, 5, (5,), receipt, (), {}, expected=1.0)
    record = structs.replace(samples.RECORD, receipt=receipt, expected=1.0)
    said = "expected 1.00 s, took 0.900 s (-10 %), without the proof"
    for page in (restore.outcome(job).page, show.receipts(samples.IMAGE, (record,)).page):
        assert f"forecast: {said}" in "\n".join(plain.lines(page))


def test_a_failed_operation_is_told_so_once() -> None:
    why = "released was not reached: interrupted"
    runs = Interval("runs", "begun", "released", None, why)
    receipt = Receipt("restore", "then", 2.5, (), intervals=(runs,))
    record = structs.replace(samples.RECORD, started="now", receipt=receipt, outcome="interrupted")
    lines = list(plain.lines(show.receipts(samples.IMAGE, (record,)).page))
    assert "restore of now, failed (interrupted):" in lines
    assert sum(line.count("was not reached") for line in lines) == 1
    assert not any("released: released" in line for line in lines)
