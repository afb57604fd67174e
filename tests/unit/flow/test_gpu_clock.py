"""The GPU's time in the driver's copies is left out, and nothing else."""

from __future__ import annotations

import struct
import time

import pytest

from gpuckpt.flow.gpu.clock import PAGE, STAMP, blank

DAY = 86_400 * 10**9


def pages(*stamps: int | None) -> bytearray:
    """Return pages of sevens, with a time in those that have one."""
    found = bytearray(b"\7" * PAGE * len(stamps))
    for number, stamp in enumerate(stamps):
        if stamp is not None:
            high, low = divmod(stamp, 1 << 32)
            struct.pack_into("<II", found, number * PAGE + STAMP, high, low)
    return found


def test_times_of_now_are_blanked_page_by_page() -> None:
    now = time.time_ns()
    first, second = pages(now, None, now), pages(now + 10**10, None, now + 2 * 10**10)
    assert (blank(memoryview(first)), blank(memoryview(second))) == (2, 2)
    assert first == second
    assert first.count(7) == 3 * PAGE - 16


@pytest.mark.parametrize("off", [-2 * DAY, 2 * DAY])
def test_any_other_number_stays(off: int) -> None:
    found = pages(None, time.time_ns() + off)
    before = bytes(found)
    assert blank(memoryview(found)) == 0
    assert found == before
