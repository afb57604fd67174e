"""What this machine can do for the tests: root, a CRIU new enough, one NVIDIA GPU or two."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from gpuckpt.model import Version

LEAST_CRIU = Version("4.2")
CRIU_PREFIX = Path("/opt/gpuckpt/criu")
_ASKED = os.environ.get("GPUCKPT_CRIU")  # tests get an environment of their own later


@cache
def required() -> frozenset[str]:
    """Return the abilities that GPUCKPT_REQUIRE demands."""
    return frozenset(filter(None, os.environ.get("GPUCKPT_REQUIRE", "").split(",")))


@cache
def found() -> dict[str, str]:
    """Return what is there in words, empty where it is missing."""
    return {
        "root": "yes" if os.geteuid() == 0 else "",
        "criu": _criu_version(),
        "gpu": "yes" if Path("/dev/nvidiactl").exists() else "",
        "gpu2": "yes" if len(list(Path("/dev").glob("nvidia[0-9]*"))) > 1 else "",
    }


@cache
def criu_program() -> Path | None:
    """Return the CRIU that the tests use, looked for where gpuckpt itself looks."""
    for place in (_ASKED, CRIU_PREFIX / "bin/criu", shutil.which("criu")):
        if place and os.access(place, os.X_OK):
            return Path(place)
    return None


def _criu_version() -> str:
    program = criu_program()
    if program is None:
        return ""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    version = done.stdout.partition("Version:")[2].split()
    return version[0] if version and Version(version[0]) >= LEAST_CRIU else ""
