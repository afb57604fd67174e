"""Wrong input: exit 2, one line that says why, a hint, and nothing was looked at."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuckpt.cli import values
from gpuckpt.cli.filechoices import ALONG, CHANGED
from gpuckpt.errors import UsageError
from gpuckpt.flow.request import DumpRequest, RestoreRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Flows, Ran

WRONG = [
    ("", "no command given"),
    ("frob", "No such command 'frob'"),
    ("dumb 5", "Did you mean 'dump'?"),
    ("dump", "Missing argument 'PID'"),
    ("dump 5 6", "unexpected extra argument"),
    ("dump abc", "PID: 'abc' is not a number"),
    ("dump 1.5", "PID: '1.5' is not a number"),
    ("dump ''", "PID: '' is not a number"),
    ("dump ٣", "PID: '٣' is not a number"),
    ("dump 0", "PID: 0 is not a process id"),
    ("dump -5", "PID: -5 is not a process id"),
    ("dump -- -5", "PID: -5 is not a process id"),
    ("dump 4194305", "PID: 4194305 is larger than any pid Linux gives"),
    (f"dump {'9' * 5000}", "is not a number"),
    ("dump 5 --jsn", "No such option: --jsn"),
    ("dump 5 --output", "Option '--output' requires an argument"),
    ("dump 5 -o ''", "--output: the path is empty"),
    ("dump 5 --level 20", "--level: 20 is out of range"),
    ("dump 5 --level -8", "--level: -8 is out of range"),
    (f"dump 5 --level {'9' * 5000}", "is not a whole number"),
    ("dump 5 --level fast", "--level: 'fast' is unknown"),
    ("dump 5 --lock-timeout 0", "--lock-timeout: 0 makes no sense"),
    ("dump 5 --lock-timeout -1", "--lock-timeout: -1 makes no sense"),
    ("dump 5 --lock-timeout nan", "--lock-timeout: nan makes no sense"),
    ("dump 5 --lock-timeout inf", "--lock-timeout: inf makes no sense"),
    ("dump 5 --lock-timeout soon", "--lock-timeout: 'soon' is not a number"),
    ("dump 5 --tcp open", "--tcp: 'open' is unknown"),
    ("dump 5 --ignore io-uring", "--ignore: 'io-uring' cannot be ignored"),
    ("plan 5 --ignore nonsense", "--ignore: 'nonsense' cannot be ignored"),
    ("plan", "Missing argument 'TARGET'"),
    ("plan 0", "PID: 0 is not a process id"),
    ("plan ''", "TARGET: the path is empty"),
    ("rehearse 5 --keep", "--keep is of no use without --dump"),
    ("rehearse 5 -o x", "--output is of no use without --dump"),
    ("gc /no/such/folder", "FOLDER: /no/such/folder does not exist"),
    ("gc /etc/passwd", "FOLDER: /etc/passwd is no folder"),
    ("dump 5 --ghost-limit 1X", "--ghost-limit: '1X' is not a size"),
    (f"dump 5 --ghost-limit {'9' * 400}T", "is not a size"),
    ("dump 5 --ghost-limit -1", "--ghost-limit: '-1' is not a size"),
    ("dump 5 --label novalue", "--label: 'novalue' has no '='"),
    ("dump 5 --label =value", "--label: '' is no name"),
    ("dump 5 --label 'a b=c'", "--label: 'a b' is no name"),
    ("dump 5 --label a=1 --label a=2", "--label: 'a' is given twice"),
    ("dump 5 --progress loud", "--progress: 'loud' is unknown"),
    ("--progress loud dump 5", "--progress: 'loud' is unknown"),
    ("restore", "Missing argument 'IMAGE'"),
    ("restore ''", "IMAGE: the path is empty"),
    ("restore x --settle -1", "--settle: -1 makes no sense"),
    ("restore x --probe ''", "--probe: the command is empty"),
    ("restore x --probe-timeout 0", "--probe-timeout: 0 makes no sense"),
    ("restore x --on-verify-fail explode", "--on-verify-fail: 'explode' is unknown"),
    ("restore x --force-gate driver", "--force-gate: 'driver' is not the id of a gate"),
    ("restore x --gpu-map 0", "--gpu-map: '0' is no list of OLD=NEW"),
    ("restore x --gpu-map 0=1,", "--gpu-map: '0=1,' is no list of OLD=NEW"),
    ("restore x --gpu-map 0=1,1=1", "--gpu-map: GPU 1 is named twice"),
    ("plan x --gpu-map 0=1,0=2", "--gpu-map: GPU 0 is named twice"),
    ("restore x --map-path /a", "--map-path: '/a' is not OLD=NEW"),
    ("restore x --map-path a=/b", "--map-path: 'a' is no absolute path below /"),
    ("restore x --map-path /a=/", "--map-path: '/' is no absolute path below /"),
    ("restore x --map-path /a=/b/../c", "--map-path: '/b/../c' is no absolute path below /"),
    ("restore x --map-path /a=/b --map-path /a/=/c", "--map-path: /a is given twice"),
    ("plan x --files some", "--files: 'some' is unknown"),
    ("restore x --files all", "--files: 'all' is unknown"),
    ("restore x --files some", "--files: 'some' is unknown"),
    ("restore x --gpu-map 0=1=2", "--gpu-map: '0=1=2' is no list of OLD=NEW"),
    ("restore x --force-gate ../x", "--force-gate: '../x' is not the id of a gate"),
    ("verify", "Missing argument 'IMAGE'"),
    ("show a b", "unexpected extra argument"),
]


@pytest.mark.parametrize(("line", "reason"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_refused_in_one_line(
    line: str, reason: str, gpuckpt: Callable[..., Ran], flows: Flows
) -> None:
    ran = gpuckpt(*shlex.split(line))
    assert ran.code == 2
    assert ran.out == ""
    first, *rest = [text for text in ran.err.splitlines() if text.startswith(("gpuckpt", "next:"))]
    assert reason in first
    assert len(rest) == 1
    assert rest[0].startswith("next: ")
    assert flows.requests == []


@pytest.mark.parametrize(("line", "reason"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_refused_as_json_too(
    line: str, reason: str, gpuckpt: Callable[..., Ran]
) -> None:
    """A program that asks for JSON gets it even where the command line is not understood."""
    ran = gpuckpt("--json", *shlex.split(line))
    assert ran.code == ran.json["exit_code"] == 2
    assert ran.json["ok"] is False
    assert ran.json["error"]["name"] == "usage"
    assert reason in ran.json["error"]["message"]
    assert ran.json["error"]["hint"]


def test_a_wrong_value_from_the_environment_names_the_variable(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCKPT_LEVEL", "99")
    ran = gpuckpt("dump", 5)
    assert ran.code == 2
    assert "GPUCKPT_LEVEL is set to '99'" in ran.err


@pytest.mark.parametrize(("text", "means"), [("1", True), ("Yes", True), ("off", False)])
def test_a_flag_from_the_environment_is_yes_or_no(
    text: str,
    means: bool,
    gpuckpt: Callable[..., Ran],
    flows: Flows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUCKPT_FILE_LOCKS", text)
    assert gpuckpt("dump", 5).code == 0
    assert flows.requests[0].file_locks is means
    monkeypatch.setenv("GPUCKPT_FILE_LOCKS", "perhaps")
    ran = gpuckpt("dump", 5)
    assert ran.code == 2
    assert "--file-locks: 'perhaps' is neither yes nor no" in ran.err
    assert "GPUCKPT_FILE_LOCKS is set to 'perhaps'" in ran.err


def test_a_current_folder_that_was_removed(
    gpuckpt: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens to shells; a relative path cannot be meant then, and that is no bug of ours."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for line in ("dump 5 -o image", "plan ./image", "gc images"):
        done = gpuckpt(*line.split())
        assert done.code == 2
        assert "the current folder was removed" in done.err


def test_options_reach_the_flow(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    line = (
        "dump 4711 -o out --leave-running --label run=7 --label who=me --level -3"
        " --lock-timeout 2.5 --tcp close --file-locks --ghost-limit 1.5M"
    )
    assert gpuckpt(*line.split()).code == 0
    asked = flows.requests[0]
    assert asked.pid == 4711
    assert asked.output.is_absolute()
    assert asked.output.name == "out"
    assert asked.leave_running
    assert asked.labels == {"run": "7", "who": "me"}
    assert (asked.level, asked.lock_timeout) == (-3, 2.5)
    assert asked.tcp.value == "close"
    assert asked.file_locks
    assert asked.ghost_limit == 3 << 19


def test_what_is_not_given_is_what_the_flow_would_take(
    gpuckpt: Callable[..., Ran], flows: Flows
) -> None:
    """The defaults are told twice, by the flow and by the command line: they must agree."""
    gpuckpt("dump", 4711)
    gpuckpt("restore", "/image")
    assert flows.requests == [DumpRequest(4711), RestoreRequest(Path("/image"))]


def test_every_option_has_a_twin_in_the_environment(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = {
        "OUTPUT": "out",
        "LEAVE_RUNNING": "1",
        "LABEL": "run=7 who=me",
        "LEVEL": "3",
        "LOCK_TIMEOUT": "2.5",
        "TCP": "established",
        "FILE_LOCKS": "yes",
        "GHOST_LIMIT": "2M",
        "QUIET": "1",
    }
    for name, value in twins.items():
        monkeypatch.setenv(f"GPUCKPT_{name}", value)
    ran = gpuckpt("dump", 4711)
    asked = flows.requests[0]
    assert asked.output.name == "out"
    assert asked.leave_running
    assert asked.file_locks
    assert asked.labels == {"run": "7", "who": "me"}
    assert (asked.level, asked.lock_timeout, asked.tcp.value) == (3, 2.5, "established")
    assert asked.ghost_limit == 2 << 20
    assert len(ran.out.splitlines()) == 1


def test_restore_options_reach_the_flow(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    line = [
        *("restore", "image", "--probe", "curl -f localhost", "--probe-timeout", "5"),
        *("--settle", "0", "--on-verify-fail", "kill"),
        *("--force-gate", "gate-driver", "--force-gate", "gate-cpu", "--pid-namespace"),
        *("--gpu-map", "0=1, GPU-6c9b=0"),
    ]
    assert gpuckpt(*line).code == 0
    asked = flows.requests[0]
    assert asked.image.is_absolute()
    assert asked.pid_namespace
    assert (asked.probe, asked.probe_timeout, asked.settle) == ("curl -f localhost", 5.0, 0.0)
    assert asked.on_verify_fail == "kill"
    assert asked.force_gates == {"gate-driver", "gate-cpu"}
    assert asked.gpu_map == (("0", "1"), ("GPU-6c9b", "0"))


def test_the_environment_may_say_what_another_command_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPUCKPT_FILES is one word for dumps and restores: who does not know it has his default."""
    read = values.choice("--files", CHANGED, ALONG)
    assert read("keep") == "keep"
    monkeypatch.setenv("GPUCKPT_FILES", "all")
    assert read("all") == "refuse"
    with pytest.raises(UsageError, match="'none' is unknown"):
        read("none")
