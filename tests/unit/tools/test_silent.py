"""Filesystems that do not answer: found by name, asked in time, never waited for."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gpuckpt.tools import silent as room

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MOUNTINFO = (
    "22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n"
    "41 22 0:45 / /home rw - nfs4 fs1:/export/home rw\n"
    "42 22 0:46 / /data rw - nfs4 fs2:/export/data rw\n"
)


def test_a_server_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over, asked = threading.Event(), []

    def statvfs(path: str) -> None:
        asked.append(path)
        if path.endswith("/data"):
            over.wait()

    for process in ("self", "7"):
        (tmp_path / process / "fd").mkdir(parents=True)
        (tmp_path / process / "mountinfo").write_text(MOUNTINFO)
        (tmp_path / process / "maps").write_text("")
    (tmp_path / "7" / "cwd").symlink_to("/data/run")
    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(room, "PATIENCE", 0.2)
    assert room.silent(tmp_path, ["/etc/hosts", "/home/me/image", "/database"], []) == ()
    assert asked == [f"{tmp_path}/self/root/home"]
    assert room.silent(tmp_path, [], [7, 8]) == ("nfs4 at /data",)
    assert room.unanswering(tmp_path, ["/home/me", "/data/models", "/database"]) == ("/data/",)
    over.set()
