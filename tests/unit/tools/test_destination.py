"""A folder as a place for an image: what it is on, and that trying it leaves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools import destination
from gpuckpt.tools.destination import place, write_speed

if TYPE_CHECKING:
    from pathlib import Path

MOUNTS = (
    "20 1 259:1 / / rw - ext4 /dev/root rw\n"
    "30 20 0:50 / {folder}/net rw - nfs4 server:/x rw\n"
    "31 20 0:51 / {folder}/net/local rw - tmpfs tmpfs rw\n"
)


def recorded(folder: Path) -> Path:
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(MOUNTS.format(folder=folder))
    (folder / "net" / "local").mkdir(parents=True)
    return proc


def test_the_filesystem_of_a_folder(tmp_path: Path) -> None:
    proc = recorded(tmp_path)
    assert place(tmp_path, proc).filesystem == "ext4"
    there = place(tmp_path / "net", proc)
    assert (there.filesystem, there.network) == ("nfs4", True)
    there = place(tmp_path / "net" / "local", proc)
    assert (there.filesystem, there.network) == ("tmpfs", False)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        place(tmp_path / "missing")


def test_a_little_is_written_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "_MOST", 4 << 20)
    speed = write_speed(tmp_path)
    assert speed is not None
    assert speed > 0
    assert not list(tmp_path.iterdir())
    assert write_speed(tmp_path / "missing") is None
