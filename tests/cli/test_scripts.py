"""The runbook scripts: a line a job, a summary, an exit status; nothing stops them silently."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(__file__).parents[2] / "bin"
PATIENCE = 30.0  # seconds; a few shells start

# A gpuckpt that knows three jobs, cannot dump the second, and cannot restore what is named bad.
FAKE = """#!/bin/sh
echo "$*" >>"$LOG"
case $1 in
    jobs) [ -z "$NO_JOBS" ] || exit 3; printf '11\\n22\\n33\\n' ;;
    dump)
        [ -z "$SLOW" ] || { touch "$LOG.busy"; sleep 1; }
        [ "$3" = 22 ] && { echo "gpuckpt dump: locked" >&2; exit 5; }
        mkdir "job-$3" && touch "job-$3/manifest.json" && echo "$PWD/job-$3"
        ;;
    restore)
        cold=false
        case $3 in
            *bad*) echo "gpuckpt restore: pid taken" >&2; exit 8 ;;
            *cold*) cold=true ;;
        esac
        echo '{"result": {"image": "x", "root_pid": 77, "a": {}, "cold": '$cold'}}'
        ;;
esac
"""


class Ran:
    """What one run of a script came to."""

    def __init__(self, done: subprocess.CompletedProcess[str], log: Path) -> None:
        self.code = done.returncode
        self.lines = done.stdout.splitlines()
        self.err = done.stderr
        self.calls = log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Ran]:
    """Return a function that runs one of the scripts with the fake program."""
    program = tmp_path / "fake gpuckpt"
    program.write_text(FAKE)
    program.chmod(0o755)
    log = tmp_path / "calls"

    def run(name: str, *argv: object, **env: str) -> Ran:
        done = subprocess.run(
            [BIN / name, *map(str, argv)],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "GPUCKPT": str(program), "LOG": str(log), **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(done, log)

    return run


def image(folder: Path, name: str, age: int) -> Path:
    manifest = folder / name / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    os.utime(manifest, (1_800_000_000 - age,) * 2)
    return manifest.parent


def test_drain_goes_on_after_a_failure(script: Callable[..., Ran], tmp_path: Path) -> None:
    ran = script("gpuckpt-drain", "out/ckpt")
    folder = tmp_path / "out" / "ckpt"
    assert ran.code == 1
    assert ran.lines == [
        f"dumped 11 {folder}/job-11",
        "failed 22 exit 5",
        f"dumped 33 {folder}/job-33",
        "summary: 2 dumped, 1 failed, 0 skipped",
    ]
    assert "gpuckpt dump: locked" in ran.err
    assert folder.stat().st_mode & 0o777 == 0o700


def test_drain_takes_pids_and_hands_options_on(script: Callable[..., Ran]) -> None:
    ran = script("gpuckpt-drain", "out", 11, 44, "--", "--tcp", "close")
    assert ran.code == 0
    assert ran.lines[-1] == "summary: 2 dumped, 0 failed, 0 skipped"
    assert ran.calls == ["dump -q 11 --tcp close", "dump -q 44 --tcp close"]


def test_drain_is_not_done_if_it_cannot_see_the_jobs(script: Callable[..., Ran]) -> None:
    ran = script("gpuckpt-drain", "out", NO_JOBS="1")
    assert ran.code == 1
    assert "could not be listed" in ran.err


@pytest.mark.parametrize(
    "line",
    ["", "--frob out", "out abc", "out -5", "out 0", "out ''", "/dev/null/x"],
)
def test_drain_refuses_wrong_input(line: str, script: Callable[..., Ran]) -> None:
    ran = script("gpuckpt-drain", *[word.strip("'") for word in line.split()])
    assert ran.code == 2
    assert ran.err.startswith("gpuckpt-drain: ") or "cannot" in ran.err
    assert not [call for call in ran.calls if call.startswith("dump")]


def test_a_signal_skips_what_is_left(tmp_path: Path) -> None:
    program = tmp_path / "gpuckpt"
    program.write_text(FAKE)
    program.chmod(0o755)
    log = tmp_path / "calls"
    with subprocess.Popen(
        [BIN / "gpuckpt-drain", "out"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "GPUCKPT": "./gpuckpt", "LOG": str(log), "SLOW": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as drain:
        ends = time.monotonic() + PATIENCE
        while not Path(f"{log}.busy").exists():
            assert time.monotonic() < ends
            time.sleep(0.01)
        drain.send_signal(signal.SIGTERM)
        told, _ = drain.communicate(timeout=PATIENCE)
    assert drain.returncode == 1
    assert told.splitlines() == [
        f"dumped 11 {tmp_path}/out/job-11",
        "skipped 22 stopped by a signal",
        "skipped 33 stopped by a signal",
        "summary: 1 dumped, 0 failed, 2 skipped",
    ]


def test_return_restores_the_oldest_first_and_only_once(
    script: Callable[..., Ran], tmp_path: Path
) -> None:
    folder = tmp_path / "c k p t"
    image(folder, "new one", age=1)
    image(folder, "old", age=1000)
    image(folder, "bad", age=10)
    image(folder, ".stage", age=5)
    (folder / "no image").mkdir()
    ran = script("gpuckpt-return", folder, "--", "--settle", "5")
    assert ran.code == 1
    assert ran.lines == [
        f"restored 77 {folder}/old",
        f"failed {folder}/bad exit 8",
        f"restored 77 {folder}/new one",
        "summary: 2 restored, 1 failed, 0 skipped",
    ]
    assert ran.calls[0] == f"restore -q {folder}/old --json --settle 5"
    assert "gpuckpt restore: pid taken" in ran.err
    assert sorted(path.name for path in (folder / "returned").iterdir()) == ["new one", "old"]
    again = script("gpuckpt-return", folder)
    assert again.lines == [
        f"failed {folder}/bad exit 8",
        "summary: 0 restored, 1 failed, 0 skipped",
    ]


def test_return_of_nothing_is_done(script: Callable[..., Ran], tmp_path: Path) -> None:
    ran = script("gpuckpt-return", tmp_path)
    assert (ran.code, ran.lines) == (0, ["summary: 0 restored, 0 failed, 0 skipped"])


@pytest.mark.parametrize("line", ["", "a b", "--frob", "missing"])
def test_return_refuses_wrong_input(line: str, script: Callable[..., Ran]) -> None:
    ran = script("gpuckpt-return", *line.split())
    assert ran.code == 2
    assert ran.err.startswith("gpuckpt-return: ")


@pytest.mark.parametrize("name", ["gpuckpt-drain", "gpuckpt-return"])
def test_scripts_explain_themselves(name: str, script: Callable[..., Ran]) -> None:
    ran = script(name, "--help")
    assert ran.code == 0
    assert "exit status" in "\n".join(ran.lines)


def test_a_job_that_was_started_is_not_called_restored(
    script: Callable[..., Ran], tmp_path: Path
) -> None:
    image(tmp_path / "ckpt", "cold", age=1)
    ran = script("gpuckpt-return", tmp_path / "ckpt", "--", "--else-start")
    assert ran.code == 0
    assert ran.lines[0] == f"started 77 {tmp_path}/ckpt/cold"
