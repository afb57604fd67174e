"""How a program was started is seen while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpuckpt.tools.origin import Origin
from gpuckpt.tools.surroundings import surroundings

PATIENCE = 20.0


def test_program_umask_and_output_are_seen(tmp_path: Path) -> None:
    """The program by the path that was found in PATH, not by what it is called or links to."""
    python, out, gone = tmp_path / "bin" / "python", tmp_path / "out.log", tmp_path / "gone"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    read, write = os.pipe()
    with out.open("wb") as file, gone.open("wb") as lost:
        gone.unlink()
        job = subprocess.Popen(
            ["python", "-I", "-S", "-c", f"import os; os.write({write}, b'1'); input()"],
            executable=python,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=lost,
            umask=0o027,
            pass_fds=[write],
        )
    os.close(write)
    with job, os.fdopen(read, "rb") as ready:
        assert ready.read(1) == b"1"
        seen = surroundings(Path("/proc"), job.pid).origin
        assert seen == Origin(str(python), 0o027, tuple(os.getgroups()), str(out), "")
        assert job.stdin is not None
        job.stdin.close()
        job.wait(PATIENCE)


def test_nothing_is_seen_of_who_is_gone() -> None:
    assert surroundings(Path("/proc"), 1 << 30).origin == Origin()
