"""Threads bound to CPUs, tried on this very thread."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuckpt.tools.cpus import Cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = threading.get_native_id()


@contextmanager
def as_before() -> Iterator[int]:
    """Give a CPU that this thread may use; afterwards it may use all it could before."""
    before = os.sched_getaffinity(ME)
    try:
        yield min(before)
    finally:
        os.sched_setaffinity(ME, before)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="bound to the only CPU is not bound")
def test_who_is_bound_is_seen_and_can_be_let_loose() -> None:
    with as_before() as cpu:
        assert Cpus().bind(ME, {cpu})
        assert Cpus().bound([ME, 1 << 22]) == {ME: frozenset({cpu})}
        assert Cpus().bind(ME)
        assert len(os.sched_getaffinity(ME)) > 1


def test_cpus_that_are_not_there_are_told() -> None:
    with as_before() as cpu:
        assert not Cpus().bind(ME, {65_000})
        assert not Cpus().bind(ME, {cpu, 65_000})
        assert os.sched_getaffinity(ME) == {cpu}
