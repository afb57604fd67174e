"""Places to write images to that are not as they should be: full, read-only, another user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import abilities

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534


def need_root(reason: str) -> None:
    if os.geteuid() == 0:
        return
    if "root" in abilities.required():
        pytest.fail(f"root is required: {reason}")
    pytest.skip(f"needs root: {reason}")


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs of its own at `folder` for as long as the context lasts."""
    need_root("to mount a small filesystem")
    folder.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["/bin/umount", "-l", folder], check=True)


@contextmanager
def other_user() -> Iterator[Path]:
    """Be nobody for as long as the context lasts; yields a folder nobody may write."""
    need_root("to become another user")
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-test-"))
    folder.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)
