"""Field cases use the jobs and the waits of the root tests."""

from __future__ import annotations

from tests.root.conftest import place

__all__ = ["place"]
