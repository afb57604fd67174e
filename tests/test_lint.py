"""`make lint` holds: run as a test, so that what CI runs cannot forget it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.programs
def test_make_lint_is_clean() -> None:
    if not (Path(sys.prefix) / "bin/ruff").exists():
        pytest.skip("the developers' tools are not installed beside this Python")
    done = subprocess.run(
        ["make", "--silent", "lint-only", f"VENV={sys.prefix}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
