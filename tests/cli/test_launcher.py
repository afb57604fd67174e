"""bin/gpuckpt finds its tree from anywhere, and trusts no module of the current folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuckpt import __version__

PROGRAM = Path(__file__).parents[2] / "bin/gpuckpt"
PATIENCE = 60.0  # seconds; an interpreter starts on a loaded machine


def test_through_a_link_from_a_hostile_folder(tmp_path: Path) -> None:
    for module in ("rich", "typer", "gpuckpt", "json"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('hostile')\n")
    (tmp_path / "link").symlink_to(PROGRAM)
    done = subprocess.run(
        [tmp_path / "link", "--version"],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},  # as sudo would leave it
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gpuckpt", __version__]
