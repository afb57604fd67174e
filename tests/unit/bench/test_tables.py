"""What the bench makes of its numbers: medians, ratios, lines, tables, targets."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from tests.bench.contents import BLOCK, MIB, fill, upper_halves
from tests.bench.growth import Line, growth_table
from tests.bench.options import parse
from tests.bench.report import report
from tests.bench.results import SYNCED, Group, Keeper, Spread, Step, load, spreads
from tests.bench.table import markdown, seconds, times
from tests.bench.targets import Verdict, verdict_table, verdicts

if TYPE_CHECKING:
    from pathlib import Path

BF16 = Group("bf16", 2048)


def dumps(way: str, *times: float, group: Group = BF16, **more: float) -> list[Step]:
    return [
        Step(group, way, number, "dump", {"seconds": one, "still": one - 0.5, **more})
        for number, one in enumerate(times, 1)
    ]


def test_a_spread_is_told_with_its_ends() -> None:
    assert Spread((3.0, 1.0, 2.0)).middle == 2.0
    assert seconds(Spread((3.0, 1.0, 2.0))) == "2.00 (1.00-3.00)"
    assert seconds(Spread((1.234,))) == "1.23"


def test_numbers_of_one_step_come_together_whenever_they_were_told() -> None:
    late = [Step(BF16, "criu", 1, "dump", {"still": 1.0}), Step(BF16, "criu", 1, "warm", {"x": 4})]
    row = spreads([Step(BF16, "criu", 1, "dump", {"seconds": 2.0}), *late])[BF16]["criu"]
    assert {name: one.values for name, one in row.items()} == {
        "dump.seconds": (2.0,),
        "dump.still": (1.0,),
        "warm.x": (4,),
    }


def test_a_dump_that_was_synced_is_a_second_row() -> None:
    rows = spreads(dumps("criu", 2.0, 4.0, sync=1.0, cpu=0.5))[BF16]
    assert list(rows) == ["criu", "criu" + SYNCED]
    assert rows["criu"]["dump.seconds"].middle == 3.0
    assert rows["criu" + SYNCED]["dump.seconds"].values == (3.0, 5.0)
    assert rows["criu" + SYNCED]["dump.still"].values == (2.5, 4.5)
    assert rows["criu" + SYNCED]["dump.cpu"].middle == 0.5


def test_ratios_are_of_medians_and_missing_cells_stay_empty() -> None:
    steps = [*dumps("criu", 2.0, 2.0, 8.0), *dumps("gpuckpt", 3.0, 3.0)]
    steps.append(Step(BF16, "gpuckpt", 1, "cold", {"seconds": 9.0}))
    assert times(spreads(steps)[BF16], "criu").splitlines() == [
        "| way | stands still | dump | restore, cold |",
        "| --- | --- | --- | --- |",
        "| criu | 1.50 (1.50-7.50) | 2.00 (2.00-8.00) |  |",
        "| gpuckpt | 2.50 (2.50-2.50) 1.67x | 3.00 (3.00-3.00) 1.50x | 9.00 |",
    ]


def test_a_line_goes_through_points_that_lie_on_one() -> None:
    line = Line.through({size: 0.25 + 0.5 * size for size in (0.5, 1, 2, 4, 8)})
    assert line.slope == pytest.approx(0.5)
    assert line.intercept == pytest.approx(0.25)
    assert line.worst[1] == pytest.approx(0.0)


def test_the_point_that_is_furthest_off_is_named() -> None:
    line = Line.through({1: 1.0, 2: 2.0, 4: 5.0, 8: 8.0})
    size, off, share = line.worst
    assert size == 4
    assert off == pytest.approx(5.0 - line.at(4))
    assert share == pytest.approx(off / line.at(4))
    assert "at 4 GiB" in growth_table({"dump": line})


def test_targets_are_judged_from_medians() -> None:
    steps = [*dumps("criu", 2.5), *dumps("gpuckpt", 2.7), *dumps("zstd", 9.0)]
    told = {one.what.partition(": ")[2]: one for one in verdicts(spreads(steps))}
    assert told["stands still / criu to disk"].kept
    assert told["criu, tar, zstd, sha256sum / dump"] == Verdict(
        "bf16, 2048 MiB, 1 process: criu, tar, zstd, sha256sum / dump", 9.0 / 2.7, 2.5, more=True
    )
    assert "MISSED" in verdict_table([Verdict("slow", 1.3, 1.2)])
    assert "MISSED" in verdict_table([Verdict("slow", 1.3, 1.5, more=True)])


def test_training_on_a_gpu_has_targets_of_its_own() -> None:
    group = Group("training fp32", 24576)
    steps = [*dumps("criu-tmpfs", 20.5, group=group), *dumps("gpuckpt", 20.9, group=group)]
    found = verdicts(spreads(steps))
    assert [(one.limit, one.kept) for one in found] == [(1.05, True)]


def test_what_was_kept_gives_the_same_tables_again(tmp_path: Path) -> None:
    about = {"kernel": "6.18"}
    steps = [*dumps("criu", 2.5, sync=1.0), *dumps("gpuckpt", 2.7, **{"part stream": 2.0})]
    steps += dumps("gpuckpt", 1.0, group=Group("growth", 1024))
    steps += dumps("gpuckpt", 2.0, group=Group("growth", 2048))
    steps.append(Step(Group("start-up", 64), "gpuckpt", 1, "--help", {"seconds": 0.2}))
    with (tmp_path / "kept").open("w") as file:
        keeper = Keeper(file)
        keeper.about(about)
        for step in steps:
            keeper.add(step)
    assert load([tmp_path / "kept"]) == (about, steps)
    twice = spreads(load([tmp_path / "kept", tmp_path / "kept"])[1])
    assert len(twice[BF16]["criu"]["dump.seconds"].values) == 2
    text = report(about, steps, ["lz4"])
    for words in (
        "kernel 6.18",
        "2 GiB, weights in bf16",
        "Growth",
        "Start-up",
        "Targets",
        "**Not measured**: lz4.",
    ):
        assert words in text
    assert json.loads((tmp_path / "kept").read_text().splitlines()[0]) == {"about": about}


def test_every_line_of_a_table_has_its_bars() -> None:
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_memory_is_filled_to_its_end_and_no_page_comes_twice() -> None:
    seed = memoryview(random.Random(1).randbytes(8 * MIB))
    memory = bytearray(20 * MIB + 4096)
    fill("bf16", memoryview(memory), [seed], rank=1)
    pages = {bytes(memory[at : at + 4096]) for at in range(0, len(memory), 4096)}
    assert len(pages) == len(memory) // 4096
    assert BLOCK % 4096 == 0


def test_half_of_each_mebibyte_is_zero() -> None:
    memory = bytearray(b"x" * (3 * MIB))
    fill("half", memoryview(memory), [memoryview(b"\1" * MIB)], rank=0)
    assert memory == (b"\1" * (MIB // 2) + bytes(MIB // 2)) * 3


def test_tables_of_values_are_sorted_bf16_numbers() -> None:
    halves = upper_halves(lambda share: share)
    assert halves == sorted(halves)
    assert halves[-1] == 0x3F7F  # just below 1.0


def test_only_what_there_is_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--gpu", "--gib", "1,8", "--rounds", "2"]).gib == (1.0, 8.0)
    assert parse(["--quick"]).rounds == 1
    assert parse(["--steps", "warm"]).steps == {"warm", "dump"}
    assert parse([]).gpu_steps < parse([]).steps
    with pytest.raises(SystemExit):
        parse(["--cases", "bf17"])
    assert "bf17 is none of" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--gib=x", "--sizes=1,-2", "--rounds=0", "--minutes=nan"])
def test_numbers_that_are_none_are_refused_by_name(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([wrong])
    told = capsys.readouterr().err
    assert wrong.partition("=")[0] in told
    assert "above 0" in told
