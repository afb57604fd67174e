"""The contract with programs: exit statuses, the JSON object, what -q prints, events on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuckpt import errors
from gpuckpt.cli import failure
from gpuckpt.flow.repair import RepairResult
from gpuckpt.image.damage import Damage
from gpuckpt.model import Condition, CudaState
from tests.cli import samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Flows, Ran

COMMANDS = {
    "plan": ("plan", "4711"),
    "rehearse": ("rehearse", "4711"),
    "dump": ("dump", "4711"),
    "restore": ("restore", "image"),
    "verify": ("verify", "image"),
    "show": ("show", "image"),
    "compat": ("compat", "image"),
    "jobs": ("jobs",),
    "doctor": ("doctor",),
    "demo": ("demo",),
    "status": ("status",),
    "repair": ("repair",),
    "gc": ("gc",),
}
RESULTS = {
    "rehearse": {
        "root_pid",
        "pids",
        "cuda_pids",
        "gpu_bytes",
        "pause",
        "seconds",
        "proved",
        "stay",
        "image_bytes",
        "stored_bytes",
        "totals",
        "image",
        "moved_before",
        "moves_now",
        "wrong",
        "findings",
        "receipt",
    },
    "plan": {
        "target",
        "root_pid",
        "can_dump",
        "output",
        "criu",
        "tcp",
        "processes",
        "findings",
        "forecast",
        "files",
        "thp_helps",
        "better_roots",
        "next",
    },
    "dump": {
        "image",
        "image_id",
        "root_pid",
        "pids",
        "running",
        "pause",
        "seconds",
        "expected_pause",
        "totals",
        "labels",
        "tracked",
        "quiesced",
        "tcp",
        "findings",
        "receipt",
    },
    "restore": {
        "image",
        "root_pid",
        "pids",
        "inside",
        "gpu_map",
        "identity",
        "findings",
        "progress",
        "expected",
        "proved",
        "aside",
        "receipt",
        "image_id",
        "account",
        "kept",
        "started",
        "cold",
        "why",
        "attempts",
        "lost",
    },
    "verify": {"image", "image_id", "files", "bytes", "raw_bytes", "seconds", "host", "findings"},
    "compat": {"images", "hosts", "fits", "best", "homeless"},
    "show": {"path", "unknown_needs", "manifest", "receipts"},
    "jobs": {"jobs"},
    "doctor": {"checks"},
    "status": {
        "needs_repair",
        "at_work",
        "unfinished",
        "strangers",
        "files",
        "tables",
        "logs",
        "returning",
        "last",
        "job",
    },
    "repair": {"dry_run", "done", "left"},
    "gc": {"dry_run", "removed", "kept", "bytes"},
    "demo": {"device", "pid", "last", "ticks", "gpu_bytes", "totals", "dump", "restore"},
}
QUIET = {
    "plan": "",
    "rehearse": "",
    "dump": f"{samples.IMAGE}\n",
    "restore": "4711\n",
    "verify": "",
    "show": f"{samples.MANIFEST.image_id}\n",
    "jobs": "4711\n99\n",
    "compat": "node9\n",
    "doctor": "",
    "demo": "",
    "status": "",
    "repair": "",
    "gc": "/ckpt/.x.stage-0123abcd\n",
}
PATIENCE = 60.0  # seconds; one Python starts


def made(error: type[errors.GpuckptError]) -> errors.GpuckptError:
    """Return an error of the class with everything an error can carry."""
    if error is errors.Interrupted:
        return errors.Interrupted(signal.SIGTERM)
    found = error.__new__(error)
    errors.GpuckptError.__init__(
        found,
        "it broke",
        hint="try this",
        findings=samples.FINDINGS,
        log=Path("/var/log/it"),
        excerpt=["Error (file.c:1)"],
    )
    return found


def every_error() -> list[type[errors.GpuckptError]]:
    def family(root: type[errors.GpuckptError]) -> list[type[errors.GpuckptError]]:
        return [root, *(one for child in root.__subclasses__() for one in family(child))]

    return family(errors.GpuckptError)


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_object(name: str, gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    ran = gpuckpt(*COMMANDS[name], "--json")
    assert ran.code == 0
    assert set(ran.json) == {"schema", "command", "ok", "exit_code", "result"}
    assert ran.json["schema"] == "gpuckpt/1"
    assert (ran.json["command"], ran.json["ok"], ran.json["exit_code"]) == (name, True, 0)
    assert set(ran.json["result"]) == RESULTS[name]
    assert flows.requests


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("flows")
def test_quiet_prints_what_a_script_needs(name: str, gpuckpt: Callable[..., Ran]) -> None:
    for line in ((*COMMANDS[name], "-q"), ("-q", *COMMANDS[name])):
        ran = gpuckpt(*line)
        assert (ran.code, ran.out) == (0, QUIET[name])
        assert "warning" in ran.err or ran.err == ""
        assert "lock" not in ran.err


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.usefixtures("flows")
def test_switches_stand_before_or_after_the_command(
    place: str, gpuckpt: Callable[..., Ran]
) -> None:
    switches = ("--json", "--progress=json")
    line = (*switches, "dump", "5") if place == "before" else ("dump", "5", *switches)
    ran = gpuckpt(*line)
    assert ran.json["ok"]
    assert [json.loads(line)["event"] for line in ran.err.splitlines()]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_ends_with_its_code(
    error: type[errors.GpuckptError], gpuckpt: Callable[..., Ran], flows: Flows
) -> None:
    flows.error = made(error)
    ran = gpuckpt("dump", 4711)
    assert ran.code == flows.error.exit_code
    assert ran.out == ""
    assert f"error: {error.name}, exit {ran.code}" in ran.err.splitlines()
    assert flows.error.message in ran.err


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_as_json(
    error: type[errors.GpuckptError], gpuckpt: Callable[..., Ran], flows: Flows
) -> None:
    flows.error = made(error)
    ran = gpuckpt("dump", 4711, "--json")
    assert set(ran.json) == {"schema", "command", "ok", "exit_code", "error"}
    assert (ran.json["command"], ran.json["ok"]) == ("dump", False)
    assert ran.json["exit_code"] == ran.code == flows.error.exit_code
    told = ran.json["error"]
    assert set(told) == {
        "name",
        "message",
        "hint",
        "job",
        "findings",
        "processes",
        "gpus",
        "log",
        "kept",
        "excerpt",
        "attempts",
        "lost",
    }
    assert (told["name"], told["message"]) == (error.name, flows.error.message)
    assert len(told["findings"]) == len(flows.error.findings)
    for finding in told["findings"]:
        assert set(finding) == {"id", "severity", "object", "reason", "remedy", "pid"}


def test_a_job_that_is_not_as_it_had_been_is_listed(
    gpuckpt: Callable[..., Ran], flows: Flows
) -> None:
    locked = Condition(
        pid=4711,
        command="train.py",
        exists=True,
        stopped=False,
        tracer=0,
        cuda=CudaState.LOCKED,
        cuda_before=CudaState.RUNNING,
        differs=True,
    )
    flows.error = made(errors.UndoIncomplete)
    flows.error.processes = (locked,)
    (told,) = gpuckpt("dump", 4711, "--json").json["error"]["processes"]
    assert (told["pid"], told["cuda"], told["cuda_before"]) == (4711, "locked", "running")
    said = gpuckpt("dump", 4711).err
    assert "locked" in said
    assert "train.py" in said


@pytest.mark.usefixtures("flows")
def test_doctor_fails_with_its_result(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuckpt.flow.doctor.doctor", lambda *_: samples.SICK)
    ran = gpuckpt("doctor", "--json")
    assert ran.code == ran.json["exit_code"] == 3
    assert not ran.json["ok"]
    assert [check["status"] for check in ran.json["result"]["checks"]] == ["ok", "failed"]
    assert ran.json["error"]["name"] == "host_unfit"
    assert gpuckpt("doctor", "-q").code == 3
    assert "failed criu: CRIU was not found; remedy:" in gpuckpt("doctor").out


def test_a_job_that_did_not_come_back_as_it_was_fails_the_rehearsal(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick = samples.rehearse_result(samples.FINDINGS[0])
    monkeypatch.setattr("gpuckpt.flow.rehearse.rehearse", flows.answer(sick))
    ran = gpuckpt("rehearse", 4711, "--stay", "2", "--ignore", "gpu-shared", "--json")
    assert ran.code == ran.json["exit_code"] == 11
    assert ran.json["error"]["name"] == "rehearsal_failed"
    assert ran.json["result"]["pause"] == sick.pause
    asked = flows.requests[0][1]
    assert (asked.stay, asked.real, asked.what.ignore) == (2.0, False, {"gpu-shared"})


@pytest.mark.usefixtures("flows")
def test_a_rehearsal_tells_its_numbers(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = gpuckpt("rehearse", 4711, "--quiesce", "--tcp", "close", "--thp").out
    assert told.endswith("next: gpuckpt dump 4711 --tcp close --quiesce --thp\n")
    told = gpuckpt("rehearse", 4711).out
    assert "1.50 s (lock 0.100 s, gpu-out 0.600 s, gpu-in 0.700 s)" in told
    assert "about 16.0 GiB, 8.0 GiB of it stored (from 2 receipts)" in told
    monkeypatch.setattr("gpuckpt.flow.rehearse.rehearse", lambda *_: samples.REHEARSED_DUMP)
    told = gpuckpt("rehearse", 4711, "--dump", "--keep").out
    assert "every byte, kept as" in told
    assert "ratio" in told
    assert gpuckpt("rehearse", 4711, "--dump", "--stay", "1").code == 2


@pytest.mark.usefixtures("flows")
def test_status_fails_with_its_result_if_something_needs_repair(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuckpt.flow.status.status", lambda *_: samples.CUT_SHORT)
    ran = gpuckpt("status", "--json")
    assert ran.code == ran.json["exit_code"] == 10
    assert ran.json["error"]["name"] == "unfinished"
    (entry,) = ran.json["result"]["unfinished"]
    assert (entry["operation"], entry["step"], entry["pids"]) == ("dump", "stream", [4711])
    assert [found["id"] for found in entry["left"]] == ["left-checkpointed"]
    told = gpuckpt("status").out
    assert "blocker left-checkpointed pid 4711 python train.py:" in told
    assert "next: gpuckpt repair" in told


@pytest.mark.usefixtures("flows")
def test_repair_fails_with_what_is_left(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = samples.CUT_SHORT.unfinished[0].left
    monkeypatch.setattr("gpuckpt.flow.repair.repair", lambda *_: RepairResult((), left))
    ran = gpuckpt("repair", 4711, "--json")
    assert (ran.code, ran.json["error"]["name"]) == (10, "undo_incomplete")
    assert len(ran.json["result"]["left"]) == 1


def test_damage_found_by_verify_is_an_error(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage = Damage("criu/pages-1.img.zst", "its digest does not match", frame=3, offset=4096)
    sick = samples.verify_result(samples.IMAGE, damage)
    monkeypatch.setattr("gpuckpt.flow.verify.verify", flows.answer(sick))
    ran = gpuckpt("verify", "image", "--json")
    assert ran.code == 7
    assert ran.json["error"]["name"] == "image_damaged"
    assert ran.json["error"]["findings"][0]["object"] == "criu/pages-1.img.zst"


def test_a_host_that_does_not_match_is_told_beside_the_intact_image(
    gpuckpt: Callable[..., Ran], flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuckpt.flow.unchanged.unchanged", flows.answer(samples.OTHER_HOST))
    ran = gpuckpt("verify", "image", "--host", "--json")
    assert (ran.code, ran.json["error"]["name"]) == (8, "host_mismatch")
    assert ran.json["result"]["host"] == "node9"
    assert [one["id"] for one in ran.json["result"]["findings"]] == ["gate-model"]
    told = gpuckpt("verify", "image", "--host").out
    assert "intact, but this host does not match: 1 finding" in told
    same = replace(samples.OTHER_HOST, findings=(), error=None)
    monkeypatch.setattr("gpuckpt.flow.unchanged.unchanged", flows.answer(same))
    ran = gpuckpt("verify", "image", "--host")
    assert (ran.code, "this host has what it needs" in ran.out) == (0, True)


def test_wait_ends_with_the_jobs_own_status(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    ran = gpuckpt("restore", "image", "--wait", "-q")
    assert (ran.code, ran.out) == (7, "4711\n")
    ran = gpuckpt("restore", "image", "--wait", "--json")
    assert ran.code == ran.json["exit_code"] == ran.json["result"]["job_exit"] == 7
    assert ran.json["ok"]
    flows.job_exit = 0
    assert gpuckpt("restore", "image", "--wait").code == 0


def test_events_tell_the_story_in_order(gpuckpt: Callable[..., Ran], flows: Flows) -> None:
    events = [json.loads(line) for line in gpuckpt("dump", 5, "--progress=json").err.splitlines()]
    assert [event["event"] for event in events if event["event"] != "bytes"] == [
        *("begin", "end", "begin", "end", "note", "warning"),
    ]
    ended = [event for event in events if event["event"] == "end"]
    assert [(event["name"], event["ok"], event["bytes"]) for event in ended] == [
        ("lock", True, 0),
        ("criu", True, 2 << 20),
    ]
    assert all(event["time"].endswith("Z") for event in events)
    flows.error = errors.WriteFailed("disk full")
    events = [json.loads(line) for line in gpuckpt("dump", 5, "--progress=json").err.splitlines()]
    assert events[-2]["ok"] is False
    assert (events[-1]["event"], events[-1]["name"]) == ("error", "write_failed")


def test_what_nobody_foresaw_is_a_bug_with_its_trace_kept(
    gpuckpt: Callable[..., Ran], flows: Flows, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    flows.error = ZeroDivisionError("division by zero")
    ran = gpuckpt("dump", 5, "--json")
    assert ran.code == ran.json["exit_code"] == 1
    assert ran.json["error"]["name"] == "bug"
    kept = Path(ran.json["error"]["log"])
    assert kept.parent == tmp_path / "state"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "ZeroDivisionError: division by zero" in kept.read_text()


def test_a_trace_is_kept_where_the_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    bug = failure.unforeseen(ValueError("x"), tmp_path / "missing")
    assert bug.log is not None
    assert bug.log.parent == tmp_path


@pytest.mark.usefixtures("flows")
def test_names_that_are_no_text_pass_through(
    gpuckpt: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Path(os.fsdecode(b"/odd-\xff-\xc3\xa4"))
    monkeypatch.setattr("gpuckpt.flow.verify.verify", lambda *_: samples.verify_result(odd))
    told = gpuckpt("verify", odd, "--json").json["result"]["image"]
    assert os.fsencode(told) == b"/odd-\xff-\xc3\xa4"


def test_a_result_that_cannot_be_written_is_no_success() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuckpt", "jobs", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 1
    assert b"its result could not be written" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_like_the_null_device(closed: str, tmp_path: Path) -> None:
    line = f'"{sys.executable}" -m gpuckpt show "{tmp_path}" {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 7
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("line", ["--help", "--version", "dump --help"])
def test_help_that_cannot_be_written_ends_in_one_line(line: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuckpt", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_went_away_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "gpuckpt", "jobs", "-q"],
        stdout=subprocess.PIPE,
        stderr=writing,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 0
