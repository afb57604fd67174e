"""The safety nets of the tests themselves hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import guard, leaks

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0  # seconds; a whole pytest starts


def pytest_on(test: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one test of its own under this project's rules."""
    (folder / "test_sample.py").write_text(f"import pytest, subprocess, sys\n{test}\n")
    argv: Sequence[str] = (
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"),
        *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(folder)),
    )
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_required_ability_turns_a_skip_into_a_failure(tmp_path: Path) -> None:
    skips = "@pytest.mark.root\ndef test_it():\n    pytest.skip('no redis')"
    done = pytest_on(skips, tmp_path, GPUCKPT_REQUIRE="root,criu")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "skipped although GPUCKPT_REQUIRE is set" in done.stdout
    assert pytest_on(skips, tmp_path, GPUCKPT_REQUIRE="").returncode == pytest.ExitCode.OK


def test_a_process_left_behind_fails_the_run(tmp_path: Path) -> None:
    leaves = (
        "def test_it():\n    child = subprocess.Popen("
        "[sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n    print('pid', child.pid)"
        "\n    child.returncode = 0"
    )
    done = pytest_on(leaves, tmp_path, GPUCKPT_TEST_SESSION="sample")
    assert "process " in done.stdout, done.stdout + done.stderr
    pid = int(done.stdout.partition("process ")[2].partition(":")[0])
    os.kill(pid, 9)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "time.sleep(600)" in done.stdout


def test_the_guard_knows_python_and_what_a_test_wrote(tmp_path: Path) -> None:
    fake = tmp_path / "criu"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    with guard.no_programs(but=tmp_path):
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        subprocess.run([fake], check=True)
        with pytest.raises(FileNotFoundError):
            subprocess.run(["no-such-program-xyz"], check=True)
        with pytest.raises(guard.RealProgram):
            subprocess.run(["true"], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="reading the packet filter needs root")
def test_leftover_tables_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_table_names", lambda _asking: iter(("CRIU-17", "filter")))
    assert "nft table CRIU-17" in leaks.look("none")
