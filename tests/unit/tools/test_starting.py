"""A job's process stands before its program until it is told to go, as whom and where it is to."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt.tools.run import Runner
from gpuckpt.tools.starting import Account, Start, Starter, User

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 20.0  # seconds; an interpreter starts slowly on a loaded machine
ENV = {"PATH": os.environ["PATH"], "WORD": "said"}


@pytest.fixture
def starter() -> Starter:
    return Starter(Runner())


def test_it_begins_when_it_is_told_and_not_before(starter: Starter, tmp_path: Path) -> None:
    """In its folder, with its umask and variables, what it prints appended to its files."""
    out = tmp_path / "out"
    out.write_text("before\n")
    line = "pwd; umask; echo $WORD; echo $0; echo wrong >&2; exit 3"
    start = Start(
        ("title", "-c", line),
        ENV,
        program="/bin/sh",
        umask=0o031,
        cwd=str(tmp_path),
        stdout=str(out),
        log=tmp_path / "state" / "log",
    )
    ready = starter.ready(start)
    assert os.getsid(ready.pid) == ready.pid
    assert ready.status() is None
    assert out.read_text() == "before\n"
    stop, writer = os.pipe()
    assert ready.go(stop) == ""
    assert ready.child.wait(PATIENCE) == 3
    assert out.read_text().splitlines() == ["before", str(tmp_path), "0031", "said", "title"]
    assert (tmp_path / "state" / "log").read_text() == "wrong\n"
    os.close(stop)
    os.close(writer)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"program": "/no/such"}, "/no/such: No such file"),
        ({"cwd": "/no/such"}, "/no/such: No such file"),
        ({"stdout": "/dev/null"}, "/dev/null: it is no regular file"),
        ({"stdout": "/no/such/file"}, "/no/such/file: No such file"),
    ],
    ids=str,
)
def test_why_it_does_not_begin_is_told(
    starter: Starter, tmp_path: Path, change: dict[str, str], told: str
) -> None:
    ready = starter.ready(replace(Start(("true",), ENV, log=tmp_path / "log"), **change))
    stop, writer = os.pipe()
    assert told in ready.go(stop)
    assert ready.status() is not None
    os.close(stop)
    os.close(writer)


def test_it_ends_if_nobody_is_left_to_tell_it(starter: Starter, tmp_path: Path) -> None:
    """As when gpuckpt is killed between the two: there is no job then, and none comes to be."""
    made = tmp_path / "made"
    ready = starter.ready(Start(("touch", str(made)), ENV, log=tmp_path / "log"))
    ready.close()
    assert ready.child.wait(PATIENCE) == 126
    assert not made.exists()
    ready = starter.ready(Start(("touch", str(made)), ENV, log=tmp_path / "log"))
    ready.give_up()
    ready.give_up()
    assert ready.status() == -9
    assert not made.exists()


def test_a_signal_ends_the_wait(starter: Starter, tmp_path: Path) -> None:
    """A pipe without a writer, as a folder on a server that does not answer."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ready = starter.ready(Start(("sleep", "600"), ENV, log=tmp_path / "log"))
    os.kill(ready.pid, 19)
    stop, writer = os.pipe()
    os.write(writer, b"1")
    assert ready.go(stop) == "it was stopped"
    assert ready.status() == -9
    os.close(stop)
    os.close(writer)


def test_nobody_knows_a_user_without_a_name(starter: Starter) -> None:
    assert starter.account(3_999_999, 1) == Account(())
    root = starter.account(0, 0)
    assert root.environment["USER"] == "root"
    assert 0 in root.groups


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_it_runs_as_the_user_it_had(starter: Starter, tmp_path: Path) -> None:
    out = tmp_path / "log"
    start = Start(("id",), ENV, user=User(65534, 65533, (44, 45)), cwd="/", log=out)
    ready = starter.ready(start)
    stop, writer = os.pipe()
    assert ready.go(stop) == ""
    ready.child.wait(PATIENCE)
    ends = time.monotonic() + PATIENCE
    while not out.read_text():
        assert time.monotonic() < ends, "it said nothing"
    words = out.read_text().split()
    assert words[0].startswith("uid=65534")
    assert words[1].startswith("gid=65533")
    assert [one.partition("(")[0] for one in words[2].partition("=")[2].split(",")] == [
        "65533",
        "44",
        "45",
    ]
    os.close(stop)
    os.close(writer)
