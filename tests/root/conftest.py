"""What every root test gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.root.harness import Field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Field]:
    """Give a place for jobs, cleared of all of them afterwards, also after a failure."""
    folder = tmp_path / "place"
    folder.mkdir()
    found = Field(folder)
    yield found
    found.close()
