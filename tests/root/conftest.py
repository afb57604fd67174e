"""What every root test gets."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.root.fake_gpu import Stage
from tests.root.harness import Field

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Field]:
    """Give a place for jobs, cleared of all of them afterwards, also after a failure."""
    folder = tmp_path / "place"
    folder.mkdir()
    found = Field(folder)
    yield found
    found.close()


@pytest.fixture
def stage(place: Field, tmp_path: Path) -> Iterator[Stage]:
    """Give a place for jobs on a GPU that is not there."""
    device = Path(f"/dev/nvidia-test-{secrets.token_hex(4)}")
    (tmp_path / "driver").mkdir()
    yield Stage(place, tmp_path / "driver", device)
    device.unlink()
