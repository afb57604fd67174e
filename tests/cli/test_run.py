"""`gpuckpt run` without a dump: what it sets, where output goes, and wrong command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.flow.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran


def test_the_variables_can_be_had_alone(gpuckpt: Callable[..., Ran]) -> None:
    told = gpuckpt("run", "--profile", "nccl", "--print-env").out
    assert told.splitlines() == [
        "export GPUCKPT_STARTED=nccl",
        *(f"export {name}={value}" for name, value in PROFILES["nccl"].environment.items()),
    ]
    assert gpuckpt("run", "--profile", "nccl", "--print-env", "-q").out == told
    found = gpuckpt("run", "--print-env", "--json").json
    assert found["result"] == {"environment": {"GPUCKPT_STARTED": "plain"}}


def test_a_slash_makes_a_folder_for_the_output(gpuckpt: Callable[..., Ran], tmp_path: Path) -> None:
    ran = gpuckpt(
        "run", "--log", f"{tmp_path}/new/logs/", "--", "sh", "-c", "echo out; echo no >&2"
    )
    assert ran.code == 0
    assert (tmp_path / "new" / "logs" / "stdout.log").read_text() == "out\n"
    assert (tmp_path / "new" / "logs" / "stderr.log").read_text() == "no\n"


@pytest.mark.parametrize("line", [(), ("--",), ("--profile", "mpi", "--", "true")])
def test_wrong_command_lines(gpuckpt: Callable[..., Ran], line: tuple[str, ...]) -> None:
    ran = gpuckpt("run", *line)
    assert (ran.code, ran.out) == (2, "")
    assert "next: " in ran.err
