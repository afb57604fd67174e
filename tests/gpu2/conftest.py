"""What the tests on two GPUs share."""

from __future__ import annotations

import pytest

from tests.gpu import tables
from tests.gpu.stage import cuda, stage, start

__all__ = ["cuda", "stage", "start"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if "gpu2" in item.path.relative_to(item.config.rootpath).parts:
            item.add_marker(pytest.mark.gpu2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured."""
    tables.show(terminalreporter)
