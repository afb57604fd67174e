"""restore with something to fall back on: what is asked for, and how what came of it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from gpuckpt import errors
from gpuckpt.cli import show
from gpuckpt.flow import launch
from gpuckpt.flow.work.history import Record
from gpuckpt.model import Attempt
from tests.cli import samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Flows, Ran

REFUSED = Attempt("/ckpt/new", "2026-07-14T03:02:11Z", "host_mismatch", 8, "it does not match")


def asked(flows: Flows) -> Any:
    assert flows.fallback is not None
    return flows.fallback


def test_nothing_is_fallen_back_on_unasked(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    ran = gpuckpt("restore", "image", "--json")
    assert ran.code == 0
    assert (asked(flows).several, asked(flows).cold) == (False, None)
    assert ran.json["result"]["cold"] is False
    assert ran.json["result"]["lost"] == {"since_image": 60.0, "before_image": 120.0}


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("--else python train.py --json -q", ("python", "train.py", "--json", "-q")),
        ("--else -- python -c 1", ("python", "-c", "1")),
        ("--json --else=run", ("run",)),
    ],
)
def test_all_that_follows_else_is_the_command(
    gpuckpt: Callable[..., Ran], flows: Flows, line: str, argv: tuple[str, ...]
) -> None:
    assert gpuckpt("restore", "image", *line.split()).code == 0
    assert asked(flows).cold.argv == argv


def test_one_word_is_a_line_and_so_is_the_twin(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpuckpt("restore", "image", "--else", "python 'a b.py'")
    assert asked(flows).cold.argv == ("python", "a b.py")
    monkeypatch.setenv("GPUCKPT_ELSE", "sh -c 'x y'")
    gpuckpt("restore", "image")
    assert asked(flows).cold.argv == ("sh", "-c", "x y")
    monkeypatch.delenv("GPUCKPT_ELSE")
    monkeypatch.setenv("GPUCKPT_ELSE_START", "1")
    monkeypatch.setenv("GPUCKPT_TRY", "yes")
    gpuckpt("restore", "image", "other")
    assert asked(flows).cold.argv == ()
    assert asked(flows).several


def test_several_images_need_try(gpuckpt: Callable[..., Ran], flows: Flows, tmp_path: Path) -> None:
    assert gpuckpt("restore", "a", "b").code == 2
    for images in (("a", "b"), ("a",)):
        assert "--plan looks at one image" in gpuckpt("restore", "--plan", "--try", *images).err
    assert flows.fallback is None
    assert gpuckpt("restore", "--try", "a", "b", "--else-start").code == 0
    assert asked(flows).places == (tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "line",
    ["--else-start --else x", "--else", "--else=", "--else-start --env-file none", "--else 'x"],
)
def test_what_makes_no_sense_is_refused(
    gpuckpt: Callable[..., Ran], flows: Flows, line: str
) -> None:
    ran = gpuckpt("restore", "image", *line.split())
    assert ran.code == 2, ran
    assert flows.fallback is None


def test_the_environment_is_the_callers_and_the_files(
    gpuckpt: Callable[..., Ran], flows: Flows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    first, second = tmp_path / "a.env", tmp_path / "b.env"
    first.write_text("# a job's\nexport A='x y'\n\nB=1 # one\n")
    second.write_text("B=2\nC=\n")
    gpuckpt("restore", "i", "--else-start", "--env-file", first, "--env-file", second)
    cold = asked(flows).cold
    assert cold.added == {"A": "x y", "B": "2", "C": ""}
    assert cold.environment["MINE"] == "1"
    assert cold.environment[launch.MARK] == "plain"
    assert not cold.inherits
    first.write_text("\ufeffA='one\u2028line'\r\nB=2\r\n")
    gpuckpt("restore", "i", "--else-start", "--env-file", first)
    assert asked(flows).cold.added == {"A": "one\u2028line", "B": "2"}
    for text, told in (
        ("A", "line 1: it is no NAME"),
        ("1=2", "it is no"),
        ("\nA=b c", "line 2"),
        ("A=\0", "NUL"),
    ):
        first.write_text(text)
        ran = gpuckpt("restore", "i", "--else-start", "--env-file", first)
        assert (ran.code, told in ran.err) == (2, True), ran
    first.write_text("A='")
    assert "line 1" in gpuckpt("restore", "i", "--else-start", "--env-file", first).err


def test_a_job_that_was_started_is_never_called_restored(
    gpuckpt: Callable[..., Ran], flows: Flows
) -> None:
    flows.back = samples.started()
    ran = gpuckpt("restore", "image", "--else-start")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "not restored: the job was started from its beginning, and runs"
    assert "pid: 99" in lines
    assert "command: python 'a job.py'" in lines
    assert "why: the image is damaged (image_damaged, exit 7)" in lines
    assert "lost: 60.0 s since the image was made, and the 3600.0 s it had run before" in lines
    assert {"output: /data/out.log", "output: /state/cold/a.log"} <= set(lines)
    assert gpuckpt("restore", "image", "--else-start", "-q").out == "99\n"
    told = gpuckpt("restore", "image", "--else-start", "--json").json["result"]
    assert told["cold"] is True
    assert told["why"]["name"] == "image_damaged"
    assert [one["outcome"] for one in told["attempts"]] == ["image_damaged", "started"]
    assert told["started"]["command"] == ["python", "a job.py"]
    assert told["started"]["ended"] is False
    flows.back = samples.back()
    plain = gpuckpt("restore", "image", "--json").json["result"]
    assert plain.keys() == told.keys()


def test_a_started_job_is_waited_for(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.back = samples.started()
    monkeypatch.setattr(launch, "stay_with", mock.Mock(return_value=3))
    ran = gpuckpt("restore", "image", "--else-start", "--wait", "--json")
    assert ran.code == 3, ran
    assert (ran.json["exit_code"], ran.json["result"]["job_exit"]) == (3, 3)
    assert asked(flows).cold.inherits
    assert asked(flows).what.stays


def test_every_try_is_told(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    flows.back = samples.back(REFUSED)
    ran = gpuckpt("restore", "--try", "image")
    assert "lost: 60.0 s since the image was made" in ran.out.splitlines()
    assert "/ckpt/new" in ran.out
    assert "it does not match" in ran.out
    error = errors.HostMismatch("it does not match")
    error.attempts = (REFUSED, Attempt("/ckpt/old", "", "image_damaged", 7, "it is damaged"))
    flows.error = error
    ran = gpuckpt("restore", "--try", "image", "--json")
    assert ran.code == 8
    assert [one["exit_code"] for one in ran.json["error"]["attempts"]] == [8, 7]
    assert "it is damaged" in ran.err


def test_a_receipt_shows_what_was_tried_before() -> None:
    back = samples.started()
    record = Record(
        operation="cold-start",
        started="2026-07-14T03:02:11Z",
        receipt=samples.RECEIPT,
        attempts=back.attempts[:1],
        lost=back.lost,
    )
    text = str(show.receipts(Path("/r"), (record,)).page)
    assert "the image is damaged" in text
    assert "it had run before" in text
